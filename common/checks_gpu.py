"""Checks of how the GPU spends its time: what binds it, where it goes, and what the figures hide."""

import statistics

from common import names
from common.checks_cpu import cold_start, recompilation
from common.events import GPU, RUNTIME, Event
from common.findings import WORTH, Check, Finding, Seen, longest, short
from common.tables import plural, us
from common.work import Row

HOT = 1 / 3  # of the GPU's time, from which one kernel is a hotspot
SPREAD = 1.25  # times the median, from which the longest call of a kernel counts as variance
TINY_US = 10.0
MANY = 20  # operations a step


def launch_bound(seen: Seen) -> Finding | None:
    if not seen.idle_us or not seen.marks or recompilation(seen):
        return None
    if len(seen.marks) < 3 and cold_start(seen):
        return None  # no step here is what a step is like
    window = Event(ts=seen.marks[0].ts, dur=seen.marks[-1].end - seen.marks[0].ts)
    if not seen.trace.lesson.get("unprofiled_us") and seen.gpu_busy(window) >= 0.5:
        return None  # with work from outside of the steps
    launches = seen.steps.kernels + seen.steps.copies + seen.steps.memsets
    try_ = "Give each launch more work, fuse (torch.compile), or replay a CUDA graph (its mode reduce-overhead)."
    if (known := _in_ops(seen)) < 0.25:
        try_ = (
            f"Only {known:.0%} of the CPU's time is in ops and launches: look at the Python between them, or at what"
            " it waits for (with_stack=True records it)."
        )
    text = f"Launch-bound: {seen.bound.why}, over {plural(launches, 'launch', 'launches')}. {try_}"
    return Finding("launch-bound", text, [*seen.marks[-1:], *longest(seen.last_step(), 1)], seen.idle_us, seen.idle_us)


def _in_ops(seen: Seen) -> float:
    """The share of the steps' time on the CPU that outermost ops and runtime calls account for."""
    mine = {(mark.pid, mark.tid) for mark in seen.marks}
    events = seen.in_steps([*seen.trace.groups["cpu_op"], *seen.trace.of(RUNTIME)])
    outer = sum(e.dur for e in events if id(e) not in seen.around and (e.pid, e.tid) in mine)
    return min(1.0, outer / max(1e-9, sum(mark.dur for mark in seen.marks)))


def _at_a_limit(seen: Seen, kind: str, ratio: str, advice: str) -> Finding | None:
    if seen.bound.kind != kind:
        return None
    mine = [(row, roof) for row, roof in zip(seen.steps.rows, seen.roofs, strict=True) if roof.bound == kind]
    share = sum(row.share for row, _ in mine)
    room = sum(max(0.0, row.median_us - (roof.ideal_us or 0.0)) * row.per_step for row, roof in mine)
    reach = (
        f"at that limit they would take {us(room)} us less" if room >= WORTH * seen.steps.busy_us else "they are there"
    )
    if room > 0.25 * seen.steps.total_us(row for row, _ in mine):
        advice = "That is far: another kernel, backend or tile may come closer (torch.compile, mode max-autotune)."
    text = f"{kind.capitalize()}-bound: {share:.0%} of the GPU's time is in kernels whose {ratio}; {reach}. {advice}"
    return Finding(f"{kind}-bound", text, longest(row.items[-1].event for row, _ in mine), room, room)


def compute_bound(seen: Seen) -> Finding | None:
    ratio = "FLOPs over the GPU's rate take longer than their bytes over its bandwidth"
    return _at_a_limit(seen, "compute", ratio, "Past it only less arithmetic or a smaller dtype helps.")


def memory_bound(seen: Seen) -> Finding | None:
    ratio = "bytes over the GPU's bandwidth take longer than their FLOPs over its rate"
    return _at_a_limit(seen, "memory", ratio, "Past it only fewer bytes help: fuse neighbours, or use a smaller dtype.")


def hotspot(seen: Seen) -> Finding | None:
    rows: dict[str, list[int]] = {}
    for i, row in enumerate(seen.steps.rows):
        rows.setdefault(row.name, []).append(i)
    name = max(rows, key=lambda name: sum(seen.steps.rows[i].share for i in rows[name]))
    mine = [seen.steps.rows[i] for i in rows[name]]
    share = sum(row.share for row in mine)
    if len(rows) < 3 or share < HOT or recompilation(seen):
        return None
    total = seen.steps.total_us(mine)
    ideal = [seen.roofs[i].ideal_us for i in rows[name]]
    room = None
    if None not in ideal:
        room = sum(max(0.0, row.median_us - (us_ or 0.0)) * row.per_step for row, us_ in zip(mine, ideal, strict=True))
    if "Pageable" in name:
        reach = (
            "start here: from pinned memory (pin_memory) it is faster, and with non_blocking it runs beside other work"
        )
    elif room is None:
        reach = "start here"
    elif room < WORTH * seen.steps.busy_us:
        reach = "it is at its limit, so only less of it helps"
    else:
        reach = f"start here: at its limit it would take {us(room)} us less"
    calls = plural(sum(row.per_step for row in mine), "call")
    text = (
        f"Hotspot: {names.short(name)} takes {share:.0%} of the GPU's time, {us(total)} us a step in {calls}; {reach}."
    )
    event = longest((item.event for row in mine for item in row.items), 1)
    return Finding("hotspot", text, event, total if room is None else room, room)


def variance(seen: Seen) -> Finding | None:
    def excess(row: Row) -> float:
        return sum(max(0.0, time - row.median_us) for time in row.times) / seen.n

    def varies(row: Row) -> bool:
        long = row.median_us >= 5 and row.share >= 0.05  # the timer's own steps are a good part of a short one
        same = row.per_step == 1 or row.family == names.GEMM  # other ops may launch a kernel on several tensors
        return len(row.times) >= 5 and long and same and max(row.times) >= SPREAD * row.median_us

    row = max(filter(varies, seen.steps.rows), key=excess, default=None)
    if row is None or not seen.marks:
        return None
    text = (
        f"Variance: {names.short(row.name)} takes {us(row.median_us)} us (median of {len(row.times)} calls on the"
        f" same shapes), but {us(min(row.times))} to {us(max(row.times))}; the mean is"
        f" {us(statistics.mean(row.times))}. Clocks, power, caches and neighbours do that: compare medians, and look"
        " at the odd call."
    )
    return Finding("variance", text, longest((item.event for item in row.items), 1), excess(row))


def tiny_launches(seen: Seen) -> Finding | None:
    events = seen.last_step()
    tiny = [event for event in events if event.dur < TINY_US]
    if len(tiny) < MANY or len(tiny) < 0.8 * len(events) or graph_replay(seen):
        return None
    gaps, until = 0.0, events[0].ts
    for event in events:
        gaps += max(0.0, event.ts - until)
        until = max(until, event.end)
    if gaps < WORTH * seen.steps.busy_us:
        return None
    text = (
        f"Many tiny launches: {len(tiny)} of a step's {len(events)} GPU operations are under {TINY_US:.0f} us; they"
        f" work for {us(sum(event.dur for event in tiny))} us, and the gaps between operations add up to {us(gaps)}"
        " us. Fuse them (torch.compile), or replay them as a CUDA graph."
    )
    stake = min(gaps, seen.idle_us) if seen.idle_us else 0.0
    return Finding("tiny-launches", text, longest(tiny), stake, stake)


def graph_replay(seen: Seen) -> Finding | None:
    replayed = [i for i in seen.steps.inside[-1] if i.launch is not None and "GraphLaunch" in i.launch.name]
    launches = list({id(item.launch): item.launch for item in replayed if item.launch}.values())
    if not launches:
        return None
    text = (
        f"Graph replay: {plural(len(launches), 'launch', 'launches')} a step ({launches[0].name}) for"
        f" {len(replayed)} GPU operations, so the CPU pays once for all. The trace has no ops and no shapes for"
        " them; inputs are first copied to where the graph reads."
    )
    return Finding("graph-replay", text, [launches[0], *longest((item.event for item in replayed), 1)], 0.0)


def overlap(seen: Seen) -> Finding | None:
    beside, most = 0.0, (0.0, seen.trace.of(GPU)[0], seen.trace.of(GPU)[0])
    for items in seen.steps.inside:
        latest: dict = {}
        kernels = [item.event for item in items if item.event.cat in ("kernel", "Kernel")]  # a copy is meant to overlap
        for event in sorted(kernels, key=lambda event: event.ts):
            device = event.args.device if event.args else None
            before = latest.get(device)
            if before is not None and before.end > event.ts:
                both = min(before.end, event.end) - event.ts
                beside += both / seen.n
                most = max(most, (both, before, event), key=lambda one: one[0])
            if before is None or event.end > before.end:
                latest[device] = event
    _, a, b = most
    if beside < WORTH * seen.steps.busy_us or not beside:
        return None
    where = "on one stream: the second was allowed to begin early" if a.tid == b.tid else "on two streams"
    text = (
        f"Overlap: kernels run beside each other for {us(beside)} us a step, {where} ({short(a)} and {short(b)})."
        " Their times add up to more than the GPU was busy, and each may be longer than alone."
    )
    return Finding("overlap", text, [a, b], beside)


CHECKS: tuple[Check, ...] = (
    launch_bound,
    compute_bound,
    memory_bound,
    hotspot,
    variance,
    tiny_launches,
    graph_replay,
    overlap,
)
