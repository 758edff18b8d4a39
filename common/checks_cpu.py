"""Checks of what the CPU does: what is paid once, what is paid at every step, and what is the profiler's own."""

import re
import statistics
from collections import Counter, defaultdict

from common import names, work
from common.events import RUNTIME, Event
from common.findings import Check, Finding, Seen, longest, outermost
from common.tables import plural, us

LOADING = re.compile(r"^(Lazy Function Loading|Runtime Triggered Module Loading)$|(Module|Library)Load")
WAITS = re.compile(r"Synchronize|Wait|Memcpy|Query|Free")  # a call that may be long whenever it is made
SLOW_US = 1000  # a call of the driver that takes longer while the GPU is idle sets something up
OCCUPANCY = re.compile(r"^(cu|cuda|hip)Occupancy\w+$")
SYNCHRONIZES = re.compile(r"^(cuda|hip)(Stream|Device|Event)Synchronize$")
COMPILING = re.compile(r"compile_inner|^entire_frame_compile|^compile_fx|^create_aot_dispatcher_function|^compile_file")
INNER = ("aten::copy_", "aten::_to_copy", "aten::to", "aten::_local_scalar_dense")  # what others call to copy
WARM = 1.5  # times the median of the later steps, from which the first one counts as longer


def cold_start(seen: Seen) -> Finding | None:
    """Of a trace that its lesson calls cold, or that sets the GPU up in its first step."""
    settings = seen.trace.lesson.get("settings")
    said = isinstance(settings, dict) and settings.get("warm") is False
    begin, end = (seen.marks[0].ts, seen.marks[0].end) if seen.marks else (float("-inf"), float("inf"))
    calls = [e for e in [*seen.trace.of(RUNTIME), *seen.trace.groups["overhead"]] if begin <= e.ts < end]
    setup = outermost(e for e in calls if LOADING.search(e.name) or _sets_up(seen, e))
    once = (
        "Contexts, workspaces and code are made at first use: run a few times before recording (a lesson's --warmup)."
    )
    works = [us_ for us_, items in zip(seen.steps.spans_us, seen.steps.inside, strict=True) if items]
    if len(seen.marks) < 2 or len(works) < 2:
        took = sum(e.dur for e in setup)
        if not setup or took < 0.1 * seen.steps.span_us:
            return None
        text = f"Cold start: {us(took)} us go into {plural(len(setup), 'call')} that set the GPU up. {once}"
        return Finding("cold-start", text, longest(setup), took, took)
    first, later = works[0], statistics.median(works[1:])
    if not (said or setup) or first < WARM * later:
        return None
    gap = _dead_window(seen)
    dead = f", with a dead window of {us(gap[0])} us between {gap[1].name} and {gap[2].name}" if gap else ""
    text = f"Cold start: the first step takes {us(first)} us, the later ones {us(later)}{dead}. {once}"
    evidence = [seen.marks[0], *(gap[1:] if gap else longest(setup, 2))]
    return Finding("cold-start", text, evidence, first - later, first - later)


def _sets_up(seen: Seen, event: Event) -> bool:
    slow = event.dur > SLOW_US and not WAITS.search(event.name) and event.name.startswith(("cu", "hip"))
    return slow and seen.gpu_busy(event) < 0.1  # a launch that waits for room in a full queue keeps the GPU busy


def _dead_window(seen: Seen) -> tuple[float, Event, Event] | None:
    """(us, before, after): where the first step waits most, against the same place in the second."""
    events = [*seen.trace.groups["cpu_op"], *seen.trace.groups["user_annotation"]]
    events += [e for e in seen.trace.of(RUNTIME) if work.is_launch(e.name)]
    sides = []
    for mark in seen.marks[:2]:
        mine = [e for e in events if (e.pid, e.tid) == (mark.pid, mark.tid) and mark.ts <= e.ts < mark.end]
        sides.append(sorted(mine, key=lambda e: (e.ts, -e.dur))[1:])
    a, b = sides
    if len(a) < 2 or [e.name for e in a] != [e.name for e in b]:
        return None
    waits = [a[i + 1].ts - a[i].ts - (b[i + 1].ts - b[i].ts) for i in range(len(a) - 1)]
    i = max(range(len(waits)), key=lambda i: waits[i])
    return a[i + 1].ts - a[i].ts, a[i], a[i + 1]


def occupancy_queries(seen: Seen) -> Finding | None:
    found = seen.in_steps(e for e in seen.trace.of(RUNTIME) if OCCUPANCY.match(e.name))
    if not found:
        return None
    took = sum(event.dur for event in found) / seen.n
    by = Counter(op.name for e in found if (op := seen.around.get(id(e))))
    inside = f" inside {', '.join(name for name, _ in by.most_common(3))}" if by else ""
    steps = sum(any(mark.ts <= e.ts < mark.end for e in found) for mark in seen.marks)
    when = f", in {steps} of {len(seen.marks)} steps" if len(seen.marks) > 1 else ""
    text = (
        f"Occupancy queries: {plural(len(found), 'call')}{inside}{when}, {us(took)} us of CPU a step. A library asks"
        " how many blocks fit on a multiprocessor before it plans a launch: they mark its heavy, adaptively"
        " launched kernels."
    )
    return Finding("occupancy-queries", text, longest(found), min(took, seen.idle_us))


def metadata_ops(seen: Seen) -> Finding | None:
    calls, took = work.metadata_ops(seen.trace, names.VIEWS)
    if not took or took < 0.05 * (seen.steps.cpu_us or seen.steps.span_us):
        return None
    most = ", ".join(name for name, _ in Counter(calls).most_common(4))
    costs = (
        "torch.compile works them out once."
        if seen.idle_us or not seen.steps.on_gpu
        else "The GPU is busy meanwhile, so they cost nothing."
    )
    text = (
        f"Metadata only: {plural(round(sum(calls.values())), 'op')} a step ({most}) rewrite shapes and strides and"
        f" launch nothing, {us(took)} us of CPU in the profile. {costs}"
    )
    saves = min(took, seen.idle_us) if seen.steps.on_gpu else took
    return Finding(
        "metadata-ops",
        text,
        longest(seen.in_steps(e for e in seen.trace.groups["cpu_op"] if e.name in names.VIEWS)),
        saves,
        saves,
    )


def compiled_region(seen: Seen) -> Finding | None:
    rows = seen.in_steps(e for e in seen.trace.groups["cpu_op"] if names.COMPILE_ROWS.match(e.name))
    if not rows or recompilation(seen):
        return None
    inside: dict[int, float] = defaultdict(float)
    for event in [*seen.trace.groups["cpu_op"], *seen.trace.of(RUNTIME)]:
        if parent := seen.around.get(id(event)):
            inside[id(parent)] += event.dur
    own = [Event(ts=event.ts, dur=max(0.0, event.dur - inside[id(event)])) for event in rows]
    took = seen.a_step(own)
    graphs = {event.name for event in rows if "CompiledFxGraph" in event.name}
    regions = {event.name for event in rows if event.name.startswith("Torch-Compiled Region")}
    same = len(seen.marks) > 1 and 0 < len(graphs) <= len(regions)
    hits = " Its graphs are the same in all steps: cache hits." if same else ""
    costs = "The GPU is busy meanwhile, so it costs nothing."
    if seen.idle_us or not seen.steps.on_gpu:
        costs = (
            "Compiling pays off over many ops; a CUDA graph avoids most of this (torch.compile, mode reduce-overhead)."
        )
    text = (
        f"Compiled region: guards, and entering and leaving {plural(len(regions) or 1, 'region')}, take {us(took)}"
        f" us of CPU a step in the profile.{hits} {costs}"
    )
    return Finding("compiled-region", text, longest(rows), min(took, seen.idle_us))


def recompilation(seen: Seen) -> Finding | None:
    both = [*seen.trace.groups["cpu_op"], *seen.trace.groups["user_annotation"]]
    outer = outermost(seen.in_steps(e for e in both if COMPILING.search(e.name)))
    if not outer:
        return None
    took = sum(event.dur for event in outer) / seen.n
    text = (
        f"Recompilation: {plural(len(outer), 'compile')} inside the recorded steps, {us(took)} us a step: a guard"
        " failed, mostly for a shape not seen before. Mark that axis dynamic, pad to a few sizes, or warm up with"
        " each; TORCH_LOGS=recompiles names the guard."
    )
    return Finding("recompilation", text, longest(outer), took, took)


def synchronize(seen: Seen) -> Finding | None:
    """The CPU waits for the GPU in the middle of a step."""
    found = seen.in_steps(e for e in seen.trace.of(RUNTIME) if SYNCHRONIZES.match(e.name)) if seen.marks else []
    took = seen.a_step(found)
    if took < 0.01 * seen.steps.span_us or not found:
        return None
    by = Counter(
        next((op.name for op in seen.ancestors(e) if op.name not in INNER), "the program itself") for e in found
    )
    text = (
        f"Synchronize in a step: the CPU waits for the GPU {plural(round(len(found) / seen.n, 2), 'time')} a step,"
        f" {us(took)} us, inside {', '.join(name for name, _ in by.most_common(3))}. Until then it can launch"
        " nothing, so the GPU runs dry. Keep .item(), print and copies to the host out of the loop, or make the"
        " copies non_blocking from pinned memory."
    )
    return Finding("synchronize", text, longest(found), took, min(took, seen.idle_us) if seen.idle_us else None)


CHECKS: tuple[Check, ...] = (
    cold_start,
    recompilation,
    synchronize,
    compiled_region,
    metadata_ops,
    occupancy_queries,
)
