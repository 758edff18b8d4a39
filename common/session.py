"""One run of a lesson: the numerics check, the unprofiled time, the profile, and the two files it leaves."""

import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path

from common import artifacts
from common import device as machine
from common.cli import Settings
from common.device import CannotRun

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

# Of ||out - ref|| / ||ref||. Rounding gives a quarter of it or less at the articles' shapes; a wrong kernel, near 1.
TOLERANCE = {"bf16": 2e-2, "fp16": 4e-3, "fp32": 1e-4}
WIDER = {"bf16": "fp32", "fp16": "fp32", "fp32": "fp64"}
TORCH_WIDER = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Workload:
    """What a lesson profiles, and its FLOPs and bytes by role, which a trace alone cannot always tell."""

    name: str  # the annotation in the trace: "mlp_fwd"
    forward: Callable[[], torch.Tensor]
    eager: Callable[[], torch.Tensor]  # the same mathematics, neither compiled nor fused
    wider: Callable[[torch.dtype], torch.Tensor]  # eager in a wider dtype
    work: list[dict]  # [{"role": "gate", "flops": 38654705664, "bytes": ...}, ...]
    layer: str | None = None  # where a layer made by others came from
    variant: str | None = None  # names the run where only loading the layer could tell


@dataclass(frozen=True)
class Result:
    path: Path
    error: float  # of the forward, against the wider dtype
    apart: float  # of the forward, against eager
    unprofiled_us: float  # median of `repeats` forwards
    repeats: int


def run(settings: Settings, device: str, load: Workload) -> Result:
    """Check, time and profile `load`, in the order that `settings.warm` asks for, and write both files.

    Raises CannotRun where the output is wrong or the trace could not be written.
    """
    with quiet(), _visible_cpp_kernels(settings, device):
        if settings.warm:
            first_s = _warm_up(load.forward, device)
            errors = _check(settings, load)
            unprofiled_us, repeats = _time(load.forward, device, first_s)
            prof = _profile(settings, device, load)
        else:  # nothing but the inputs has been on the device yet
            prof = _profile(settings, device, load)
            errors = _check(settings, load)
            unprofiled_us, repeats = _time(load.forward, device, _warm_up(load.forward, device))
        not_of_the_run = ("lesson", "out", "full_names", "ceilings", "guess", "question", "open")
        about = {
            "name": settings.lesson,
            "settings": {key: value for key, value in asdict(settings).items() if key not in not_of_the_run},
            "versions": machine.versions(),
            "device": machine.name(device),
            "layer": load.layer,
            "unprofiled_us": round(unprofiled_us, 3),
            "work": load.work,
            "ceilings": _ceilings(settings.dtype) if device == "cuda" and settings.ceilings else None,
        }
        path = settings.out / settings.lesson / f"{settings.config(device)}.json"
        artifacts.write(path, prof, about, device)
    return Result(path, *errors, unprofiled_us, repeats)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the profiler's own lines and torch's logs and warnings: a lesson's reader can act on none of them."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ["KINETO_LOG_LEVEL"] = "99"
    logging.disable(logging.CRITICAL)
    try:
        # Autotuning writes its tables to stderr itself.
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]
        else:
            os.environ["KINETO_LOG_LEVEL"] = before


def _visible_cpp_kernels(settings: Settings, device: str) -> AbstractContextManager:
    """On a CPU, Inductor's C++ kernels leave no row in a trace unless they are told to."""
    if device == "cpu" and settings.mode:
        import torch._inductor.config as inductor  # slow, and only needed here

        return inductor.patch("cpp.enable_kernel_profile", True)
    return nullcontext()


def _warm_up(forward: Callable, device: str) -> float:
    """Compile, JIT and warm up; seconds of the last forward."""
    for _ in range(5 if device == "cuda" else 2):  # CUDA graphs want three
        start = time.perf_counter()
        forward()
        _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _check(settings: Settings, load: Workload) -> tuple[float, float]:
    """The forward's relative error against eager in a wider dtype, and against eager."""
    wider = WIDER[settings.dtype]
    reference = load.wider(TORCH_WIDER[wider])
    eager = load.eager().to(reference.dtype)
    out = load.forward().to(reference.dtype)  # a copy: a CUDA graph reuses the memory of its output
    error, apart = (((out - other).norm() / other.norm()).item() for other in (reference, eager))
    limit = TOLERANCE[settings.dtype]
    if not (error <= limit and apart <= limit):  # nan is not
        found = f"relative error {error:.2e} against {wider}, {apart:.2e} against eager, limit {limit:.0e}"
        raise CannotRun(f"the output is wrong, so nothing was written: {found}")
    return error, apart


def _time(forward: Callable, device: str, first_s: float) -> tuple[float, int]:
    """Median microseconds of one forward, and of how many. On a CPU a slow forward is repeated less."""
    if device == "cpu":
        repeats = max(3, min(50, int(2 / first_s)))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            forward()
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times), repeats
    repeats = max(20, min(100, int(0.5 / first_s)))
    return statistics.median(_event_times(forward, repeats)) * 1e3, repeats


def _event_times(fn: Callable, repeats: int) -> list[float]:
    """Milliseconds of each of `repeats` calls, by CUDA events."""
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in marks:
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]


def _profile(settings: Settings, device: str, load: Workload) -> profile:
    wait, warmup, active = settings.schedule
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(
        activities=activities, schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1), record_shapes=True
    ) as prof:
        for _ in range(wait + warmup + active):
            with record_function(load.name):
                load.forward()
            prof.step()
    return prof


def _ceilings(dtype: str) -> dict[str, float]:
    """What this GPU reaches in this run, on random numbers: a large copy on the device, a large square GEMM.

    GB/s of bytes read and written, and TFLOP/s.
    """
    torch.cuda.empty_cache()
    n = 4096 if dtype == "fp32" else 8192
    size = 2**29 if torch.cuda.mem_get_info()[0] > 2**32 else 2**26  # bytes
    a, b = (torch.randn(n, n, device="cuda", dtype=machine.DTYPES[dtype]) for _ in range(2))
    source = torch.randint(256, (size,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    ms = {}
    for name, fn in (("copy", lambda: target.copy_(source)), ("gemm", lambda: torch.mm(a, b))):
        _event_times(fn, 3)
        ms[name] = statistics.median(_event_times(fn, 10))
    return {"copy_gbps": round(2 * size / ms["copy"] / 1e6, 1), "gemm_tflops": round(2 * n**3 / ms["gemm"] / 1e9, 1)}
