"""Checks of what is the profiler's own: what it lost, what it added, and a figure that it gets wrong."""

import re

from common.events import RUNTIME, Args, Scalar
from common.findings import FIRST, Check, Finding, Seen, longest, short
from common.tables import plural, us

SYNCHRONIZE = re.compile(r"^(cuda|hip)DeviceSynchronize$")
LOSES = (  # why a profiler records nothing of the GPU
    "another profiler holds CUPTI (Nsight, DCGM), the driver keeps profiling for administrators"
    " (NVreg_RestrictProfilingToAdminUsers=0 opens it), or WSL lacks CUPTI"
)
OCCUPANCY_LIMIT = 49_152  # bytes of shared memory a block, above which the profiler's occupancy is 0


def lost_events(seen: Seen) -> Finding | None:
    lost = seen.steps.lost
    if not lost:
        return None
    kernels = [e for e in lost if "Kernel" in e.name or "Graph" in e.name]
    whole = len(lost) + sum(len(items) for items in seen.steps.inside)
    text = (
        f"Lost GPU events: {len(lost)} of {whole} launches ({', '.join(sorted({e.name for e in lost}))}) have no GPU"
        " event in the file, so the counts and sums are too low. "
    )
    text += (
        "Does another profiler hold CUPTI, or did the recording end before the GPU did?" if kernels
        else "Only copies or memsets are missing; kernels are whole."
    )  # fmt: skip
    return Finding("lost-events", text, (kernels or lost)[:3], FIRST if kernels else 0.0)


def buffer_request(seen: Seen) -> Finding | None:
    requests = seen.in_steps(e for e in seen.trace.groups["overhead"] if "Buffer Request" in e.name)
    found = [e for e in requests if seen.gpu_busy(e) < 0.5]
    if not found:
        return None
    took = sum(event.dur for event in found)
    text = (
        f"Profiler's buffer: {plural(len(found), 'Activity Buffer Request')}, {us(took)} us, in a gap of the GPU."
        " The gap is the profiler's, not the program's; a schedule that waits and warms up first (1,1,3) leaves it"
        " outside."
    )
    return Finding("profiler-buffer", text, longest(found), took / seen.n)


def final_synchronize(seen: Seen) -> Finding | None:
    """The one behind the last step, where it is as long as half a step or more."""
    if not seen.marks:
        return None
    found = [e for e in seen.trace.of(RUNTIME) if SYNCHRONIZE.match(e.name) and e.ts >= seen.marks[-1].end]
    last = max(found, key=lambda e: e.ts, default=None)
    if last is None or last.dur < 0.5 * seen.steps.span_us:
        return None
    busy = seen.gpu_busy(last)
    why = "the CPU had run ahead, and waits here for what it had queued"
    if busy < 0.5:
        why = "the rest is the profiler collecting its records; so little work under it is a sign of a launch-bound run"
    text = (
        f"Final synchronize: {last.name} takes {us(last.dur)} us after the last step, and the GPU works for"
        f" {busy:.0%} of it: {why}."
    )
    return Finding("final-synchronize", text, [last], 0.0)


def zero_occupancy(seen: Seen) -> Finding | None:
    device = seen.trace.devices[0] if seen.trace.devices else {}
    most = max(1, (_number(device.get("maxThreadsPerMultiprocessor")) or 2048) // 32)
    for row in sorted(seen.steps.rows, key=lambda row: -row.share):
        event = row.items[-1].event
        if event.args is None or event.args.occupancy != 0 or row.share < 0.05:
            continue
        shared, warps = _number(event.args.shared_memory), _resident_warps(event.args, device)
        if shared is None or shared <= OCCUPANCY_LIMIT or warps is None or warps / most < 0.05:
            continue  # of a grid so small, about 0 is true
        text = (
            f"Occupancy of 0 %: {short(event)} has about {warps:.3g} of {most:g} warps a multiprocessor, and the"
            f" profiler writes 0: its calculator gives up above {OCCUPANCY_LIMIT:,} bytes of shared memory a block,"
            f" and this one takes {shared:,.0f}. Do not read it as idle."
        )
        return Finding("zero-occupancy", text, [event], 0.0)
    return None


def _number(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e12 else None


def _resident_warps(args: Args, device: dict) -> float | None:
    """Of a multiprocessor: of the blocks that it is dealt, those that its shared memory and registers hold at once."""
    dealt, blocks, shared = _number(args.warps), _number(args.blocks), _number(args.shared_memory)
    if dealt is None or blocks is None or shared is None:
        return None
    a_block = dealt / blocks
    fit = [blocks]
    if memory := _number(device.get("sharedMemPerMultiprocessor")):
        fit.append(memory // shared)
    if (file := _number(device.get("regsPerMultiprocessor"))) and (registers := _number(args.registers)):
        fit.append(file // (registers * 32 * a_block))
    return a_block * min(fit)


CHECKS: tuple[Check, ...] = (lost_events, buffer_request, final_synchronize, zero_occupancy)
