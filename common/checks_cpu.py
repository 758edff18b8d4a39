"""Checks of what the CPU does: what is paid once, what is paid at every step, and what is the profiler's own."""

import re
import statistics
from collections import Counter, defaultdict

from common import names, work
from common.events import RUNTIME, Event
from common.findings import Check, Finding, Seen, longest
from common.tables import plural, us

LOADING = re.compile(r"^(Lazy Function Loading|Runtime Triggered Module Loading)$|(Module|Library)Load")
WAITS = re.compile(r"Synchronize|Wait|Memcpy|Query|Free")  # a call that may be long whenever it is made
SLOW_US = 1000  # a call of the driver that takes longer while the GPU is idle sets something up
OCCUPANCY = re.compile(r"^(cu|cuda|hip)Occupancy\w+$")
SYNCHRONIZE = re.compile(r"^(cuda|hip)DeviceSynchronize$")
COMPILING = re.compile(r"compile_inner|^entire_frame_compile|^compile_fx|^create_aot_dispatcher_function|^compile_file")
WARM = 1.5  # times the median of the later steps, from which the first one counts as longer


def cold_start(seen: Seen) -> Finding | None:
    """Of a trace that its lesson calls cold, or that sets the GPU up in its first step."""
    settings = seen.trace.lesson.get("settings")
    said = isinstance(settings, dict) and settings.get("warm") is False
    until = seen.marks[0].end if seen.marks else float("inf")
    calls = [e for e in [*seen.trace.of(RUNTIME), *seen.trace.groups["overhead"]] if e.ts < until]
    setup = [e for e in calls if LOADING.search(e.name) or _sets_up(seen, e)]
    once = "Contexts, workspaces and code are made at first use: run a few times before recording (--warmup)."
    if len(seen.marks) < 2:
        took = sum(e.dur for e in setup)
        if not setup or took < 0.1 * seen.steps.span_us:
            return None
        text = f"Cold start: {us(took)} us go into {plural(len(setup), 'call')} that set the GPU up. {once}"
        return Finding("cold-start", text, longest(setup), took, took)
    first, later = seen.steps.spans_us[0], statistics.median(seen.steps.spans_us[1:])
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
    took = sum(max(0.0, event.dur - inside[id(event)]) for event in rows) / seen.n
    graphs = {event.name for event in rows if "CompiledFxGraph" in event.name}
    regions = {event.name for event in rows if event.name.startswith("Torch-Compiled Region")}
    hits = " Its graphs are the same in all steps: cache hits." if graphs and len(graphs) <= len(regions) else ""
    costs = "The GPU is busy meanwhile, so it costs nothing."
    if seen.idle_us or not seen.steps.on_gpu:
        costs = "It pays off over many ops; replaying a CUDA graph avoids most of it (--compile reduce-overhead)."
    text = (
        f"Compiled region: guards, and entering and leaving {plural(len(regions), 'region')}, take {us(took)} us of"
        f" CPU a step in the profile.{hits} {costs}"
    )
    return Finding("compiled-region", text, longest(rows), min(took, seen.idle_us))


def recompilation(seen: Seen) -> Finding | None:
    both = [*seen.trace.groups["cpu_op"], *seen.trace.groups["user_annotation"]]
    outer: list[Event] = []
    for event in sorted(seen.in_steps(e for e in both if COMPILING.search(e.name)), key=lambda e: (e.ts, -e.dur)):
        if not outer or event.ts >= outer[-1].end:
            outer.append(event)
    if not outer:
        return None
    took = sum(event.dur for event in outer) / seen.n
    text = (
        f"Recompilation: {plural(len(outer), 'compile')} inside the recorded steps, {us(took)} us a step: a guard"
        " failed, mostly for a shape not seen before. Mark that axis dynamic, pad to a few sizes, or warm up with"
        " each; TORCH_LOGS=recompiles names the guard."
    )
    return Finding("recompilation", text, longest(outer), took, took)


CHECKS: tuple[Check, ...] = (
    *(cold_start, occupancy_queries, buffer_request, final_synchronize, metadata_ops, compiled_region, recompilation),
)
