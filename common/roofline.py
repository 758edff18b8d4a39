"""FLOPs and bytes of a kernel, the limits of its GPU, and how near it comes to them.

From the lesson's stated work where the trace carries it; else from the shapes that the profiler recorded, where they
tell. What they do not tell is None, or a lower bound marked `at_least`: never 0, never a guess.
"""

import re
from dataclasses import dataclass

from common import names, shapes
from common.events import Trace
from common.shapes import Roof
from common.work import Row, Steps

TF32 = re.compile(r"tf32|tensorop_s1688gemm_\d")  # fp32 tensors, multiplied at half of the bf16 rate
HALF = ("c10::BFloat16", "c10::Half")
LATENCY_US = 10  # a kernel shorter than this, at under half of either limit, is bound by its own start and end


FAR = 0.03  # of either limit, below which neither of them binds a kernel


@dataclass
class Peaks:
    """TFLOP/s by kind of arithmetic, and GB/s of memory, with where the figures are from. None is unknown."""

    half: float | None  # bf16 and fp16 on the matrix units, dense
    single: float | None  # fp32
    gbps: float | None
    source: str


# Dense peaks and memory bandwidth by the vendors' datasheets; the first name found in the device's name decides.
DATASHEETS = (
    # name, TFLOP/s bf16 (V100, T4: fp16), TFLOP/s fp32, GB/s, source
    ("B200", 2250, 75, 8000, "NVIDIA DGX B200 datasheet, per GPU"),
    ("H200", 989, 67, 4800, "NVIDIA H200 datasheet (SXM)"),
    ("H100 PCIe", 756, 51, 2000, "NVIDIA H100 datasheet (PCIe)"),
    ("H100 NVL", 835, 60, 3900, "NVIDIA H100 datasheet (NVL)"),
    ("H100", 989, 67, 3350, "NVIDIA H100 datasheet (SXM)"),
    ("A100-SXM4-80GB", 312, 19.5, 2039, "NVIDIA A100 datasheet (80 GB SXM)"),
    ("A100 80GB PCIe", 312, 19.5, 1935, "NVIDIA A100 datasheet (80 GB PCIe)"),
    ("A100", 312, 19.5, 1555, "NVIDIA A100 datasheet (40 GB)"),
    ("V100", 125, 15.7, 900, "NVIDIA V100 datasheet (SXM2; fp16)"),
    ("T4", 65, 8.1, 320, "NVIDIA T4 datasheet (fp16)"),
    ("L4", 121, 30.3, 300, "NVIDIA L4 datasheet"),
    ("MI300X", 1307, 163.4, 5300, "AMD Instinct MI300X datasheet"),
)


def peaks(trace: Trace) -> Peaks:
    """Those that the lesson measured, else a datasheet's, else unknown."""
    ceilings = trace.lesson.get("ceilings")
    if isinstance(ceilings, dict) and isinstance(trace.lesson.get("settings"), dict):
        tflops, gbps = ceilings.get("gemm_tflops"), ceilings.get("copy_gbps")
        half = trace.lesson["settings"].get("dtype") in ("bf16", "fp16")
        return Peaks(tflops if half else None, None if half else tflops, gbps, "measured in the lesson's run")
    device = str(trace.devices[0].get("name", "")) if trace.devices else ""
    for name, half_tflops, single, bandwidth, source in DATASHEETS:
        if re.search(rf"\b{re.escape(name)}\b", device):
            return Peaks(half_tflops, single, bandwidth, source)
    return Peaks(None, None, None, f"peak unknown for {device or 'this device'}")


def roofs(trace: Trace, steps: Steps) -> list[Roof]:
    """A Roof for each of `steps.rows`."""
    limits, stated = peaks(trace), _stated(trace, steps)
    result = []
    for i, row in enumerate(steps.rows):
        roof = stated.get(i) or shapes.roof(row)
        seconds = row.median_us * 1e-6
        if seconds > 0 and steps.on_gpu:
            _rate(roof, limits, seconds, _peak(row, trace, limits))
        result.append(roof)
    return result


@dataclass
class Bound:
    """What a step is bound by. "Launch-bound" is said of a step, never of a kernel."""

    kind: str  # launch, compute, memory or latency; GPU where the GPU is busy and its kernels' bounds are not known
    why: str
    busy: float  # the share of `whole_us` in which the GPU works
    whole_us: float  # of an unprofiled forward where the lesson measured it, else of a profiled step

    def __str__(self) -> str:
        return f"{self.kind}-bound: {self.why}"


def step_bound(trace: Trace, steps: Steps, rows: list[Roof]) -> Bound:
    """Against the unprofiled time where it is known, for the profiler slows the CPU down and not the GPU."""
    unprofiled = trace.lesson.get("unprofiled_us")
    whole, what = steps.span_us, "the step"
    if isinstance(unprofiled, int | float) and unprofiled > 0:
        whole, what = float(unprofiled), f"the {unprofiled:,.1f} us of an unprofiled forward"
    busy = min(1.0, steps.busy_us / whole) if whole else 1.0
    known = f"the GPU works for {busy:.0%} of {what}"
    if busy < 0.5:
        return Bound("launch", f"{known} and waits for the CPU the rest of the time", busy, whole)
    shares = {"compute": 0.0, "memory": 0.0, "latency": 0.0}
    for row, roof in zip(steps.rows, rows, strict=True):
        if roof.bound:
            shares[roof.bound] += row.share
    most = max(shares, key=lambda kind: shares[kind])
    if shares[most] < 0.5:
        return Bound("GPU", f"{known}; what most of its kernels are bound by is not known", busy, whole)
    return Bound(most, f"{known}, and {shares[most]:.0%} of that is in kernels bound by {most}", busy, whole)


def limit_us(steps: Steps, roofs: list[Roof]) -> float | None:
    """Microseconds of a step's kernels if each were at its limit; None where one of weight has no known limit."""
    rows = zip(steps.rows, roofs, strict=True)
    if sum(row.share for row, roof in zip(steps.rows, roofs, strict=True) if roof.ideal_us is None) > 0.1 or not roofs:
        return None
    known = [(row, None if roof.bound == "latency" else roof.ideal_us) for row, roof in rows]
    return sum(row.per_step * (row.median_us if ideal is None else ideal) for row, ideal in known)


def _rate(roof: Roof, limits: Peaks, seconds: float, peak: float | None) -> None:
    roof.tflops = roof.flops / seconds / 1e12 if roof.flops else None
    roof.gbps = roof.bytes / seconds / 1e9 if roof.bytes else None
    compute = roof.flops / peak / 1e6 if roof.flops and peak else None
    memory = roof.bytes / limits.gbps / 1e3 if roof.bytes and limits.gbps else None
    if memory is None or (roof.flops and compute is None) or roof.at_least or roof.note.startswith("to or from"):
        return  # one of the two limits is not known, so neither is the larger
    roof.ideal_us = max(compute or 0.0, memory)
    roof.of_ideal = roof.ideal_us / (seconds * 1e6)
    short = (seconds * 1e6 < LATENCY_US and roof.of_ideal < 0.5) or roof.of_ideal < FAR
    roof.bound = "latency" if short else "compute" if (compute or 0.0) >= memory else "memory"


def _peak(row: Row, trace: Trace, limits: Peaks) -> float | None:
    """TFLOP/s of the kind of arithmetic that a kernel does."""
    settings = trace.lesson.get("settings")
    single = isinstance(settings, dict) and settings.get("dtype") == "fp32"
    if row.inputs:
        single = row.inputs[0][1] not in HALF
    if single and limits.half and TF32.search(row.name):
        return limits.half / 2  # datasheets: A100, H100, H200, B200, dense
    return limits.single if single else limits.half


def _stated(trace: Trace, steps: Steps) -> dict[int, Roof]:
    """Row -> what the lesson states, where the kernels of a step are, family by family, the roles that it names."""
    work = trace.lesson.get("work")
    if not isinstance(work, list) or not steps.on_gpu:
        return {}
    order = [i for i in steps.order if steps.rows[i].family not in (names.COPY, names.MEMSET)]
    if [steps.rows[i].family for i in order] != [role.get("family") for role in work]:
        return {}
    roofs: dict[int, Roof] = {}
    for i, role in zip(order, work, strict=True):
        flops, size = role.get("flops"), role.get("bytes")
        if i in roofs and (roofs[i].flops, roofs[i].bytes) != (flops, size):
            return {}
        roofs[i] = Roof(flops, size)
    return roofs
