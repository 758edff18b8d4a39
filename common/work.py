"""Events -> the work of one step: each GPU event tied to its launch, its op and its shapes, and the kernel table.

Where a kernel belongs is decided by who launched it, not by when it ran: it counts to the step whose CPU side holds
its launch, and to the innermost op around that launch.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from operator import attrgetter

from common import lanes, names
from common.events import GPU, RUNTIME, Event, Scalar, Trace, parsed

LAUNCH = re.compile(
    r"^(cuda|cu|hip)\w*(LaunchKernel|LaunchCooperativeKernel|GraphLaunch|Memcpy\w*Async|MemcpyWithStream|Memset\w*Async)"
)


@dataclass
class Item:
    """One piece of work: a GPU event, or on a trace without a GPU an op that does work itself."""

    event: Event
    us: float  # an op's time is without that of the working ops inside it
    launch: Event | None
    op: Event | None


@dataclass
class Row:
    """The calls of one kernel by one op on one set of shapes, over all steps."""

    name: str
    family: str
    origin: str
    op: str  # that launched it; the launch itself where no op is around it, as in the replay of a graph
    per_step: float
    times: list[float] = field(repr=False)  # microseconds
    share: float  # of the time of all rows
    inputs: list[tuple]  # (shape, dtype, strides) of each tensor that the op takes, in its own order
    concrete: list[str]  # the op's arguments that are no tensors, as text, "" for a tensor
    moved: int | None  # bytes of a copy or memset of the driver
    items: list[Item] = field(repr=False)  # the calls themselves, in the order of their launches in each step

    @property
    def dims(self) -> list:
        return [shape for shape, _, _ in self.inputs]

    @property
    def median_us(self) -> float:
        return statistics.median(self.times)


@dataclass
class Steps:
    """The work of a trace, per step: medians over the steps. Without steps in the file, all of it is one step.

    A step's span reaches from its start, or the end of the step before if that is later, to its own end: the later of
    its CPU end and its last GPU end. So a step that waits in the queue behind another is not charged for the wait.
    """

    numbers: list[int]  # of ProfilerStep#N
    on_gpu: bool
    rows: list[Row]  # in the order of their first launch, so that the table reads like the program
    order: list[int]  # the row of each launch of the last step
    kernels: float  # on a trace without a GPU: working ops
    copies: float
    memsets: float
    busy_us: float  # in which at least one GPU event runs
    span_us: float
    spans_us: list[float]  # of each step
    cpu_us: float  # of the step's own row on the CPU; 0 without steps
    lost: list[Event]  # launches in the steps whose GPU event is not in the file
    unlaunched: list[Event]  # GPU events whose launch is not in the file: they belong to no step
    inside: list[list[Item]] = field(repr=False)  # the work of each step

    def total_us(self, rows: Iterable[Row]) -> float:
        """Of the rows' calls in a step, on average: unlike medians these add up."""
        return sum(sum(row.times) for row in rows) / len(self.inside)


def devices(trace: Trace) -> list[Scalar]:
    """The GPUs that the events of a trace name; none where there is no GPU event."""
    return sorted({e.args.device for e in trace.of(GPU) if e.args is not None}, key=str)


def per_step(trace: Trace, device: Scalar = None) -> Steps:
    """The kernel table of `trace` and the figures below it: of all GPUs together, or of one."""
    marks = lanes.steps(trace)
    everywhere = trace.of(GPU)
    gpu = [e for e in everywhere if device is None or (e.args is not None and e.args.device == device)]
    ops = [e for e in trace.groups["cpu_op"] if _works(e.name)]
    launches = [e for e in trace.of(RUNTIME) if is_launch(e.name)]
    on_gpu = bool(gpu or launches)
    items = _gpu_items(gpu, launches, ops) if on_gpu else _cpu_items(ops)
    step_of = lanes.finder(marks)
    inside: list[list[Item]] = [[] for _ in marks or [None]]  # type: ignore[list-item]
    unlaunched = []
    for item in items:
        if marks and launches and item.launch is None:  # launched before the recording began, and run in it
            unlaunched.append(item.event)
        elif not marks:
            inside[0].append(item)
        elif (step := step_of(item.launch or item.event)) is not None:
            inside[step].append(item)
    arrived = {_correlation(event) for event in everywhere}
    lost = [e for e in launches if _correlation(e) not in arrived and (not marks or step_of(e) is not None)]

    copies = [sum(item.event.cat == "gpu_memcpy" for item in items) for items in inside]
    memsets = [sum(item.event.cat == "gpu_memset" for item in items) for items in inside]
    kernels = [len(items) - c - m for items, c, m in zip(inside, copies, memsets, strict=True)]
    rows, order = _rows(inside)
    spans = _spans(inside, [step for _, step in marks])
    return Steps(
        numbers=[number for number, _ in marks],
        on_gpu=on_gpu,
        rows=rows,
        order=order,
        kernels=statistics.median(kernels),
        copies=statistics.median(copies),
        memsets=statistics.median(memsets),
        busy_us=statistics.median(busy(items) if on_gpu else sum(item.us for item in items) for items in inside),
        cpu_us=statistics.median(step.dur for _, step in marks) if marks else 0.0,
        span_us=statistics.median(spans),
        spans_us=spans,
        lost=lost,
        unlaunched=unlaunched,
        inside=inside,
    )


def metadata_ops(trace: Trace, which: frozenset[str] = names.METADATA_OPS) -> tuple[dict[str, float], float]:
    """The ops of a step that launch nothing: calls by name, and the microseconds of CPU they take."""
    marks = lanes.steps(trace)
    step_of = lanes.finder(marks)
    ops = [e for e in trace.groups["cpu_op"] if e.name in which]
    ops = [op for op in ops if not marks or step_of(op) is not None]
    inside_another = lanes.innermost(ops, ops)
    around = lanes.innermost(ops, [e for e in trace.of(RUNTIME) if is_launch(e.name)])
    copies: set[int] = set()  # a reshape whose strides allow no view
    for op in around.values():
        outer: Event | None = op
        while outer is not None and id(outer) not in copies:
            copies.add(id(outer))
            outer = inside_another.get(id(outer))
    ops = [op for op in ops if id(op) not in copies]
    inside_another = {point: op for point, op in inside_another.items() if id(op) not in copies}
    n = len(marks) or 1
    calls: dict[str, float] = defaultdict(float)
    for op in ops:
        calls[op.name] += 1 / n
    return dict(calls), sum(op.dur for op in ops if id(op) not in inside_another) / n


def _rows(inside: list[list[Item]]) -> tuple[list[Row], list[int]]:
    groups: dict[tuple[str, str, bytes], list[Item]] = {}
    order: list[int] = []
    index: dict[tuple, int] = {}
    for items in inside:
        order = []
        for item in sorted(items, key=lambda item: (item.launch or item.event).ts):
            by = item.op or item.launch
            shapes = bytes(item.op.args.dims) if item.op and item.op.args else b""
            key = (item.event.name, by.name if by else "", shapes)
            groups.setdefault(key, []).append(item)
            order.append(index.setdefault(key, len(index)))
    total = sum(item.us for group in groups.values() for item in group)
    rows = []
    for (name, op, _), group in groups.items():
        family, origin = names.classify(name)
        times = [item.us for item in group]
        share = sum(times) / total if total else 0.0
        inputs, concrete = _inputs(group[0].op)
        sizes = {n for item in group if isinstance(n := item.event.args and item.event.args.bytes, int) and n < 1e15}
        moved = sizes.pop() if len(sizes) == 1 and group[0].event.cat != "cpu_op" else None
        calls = len(group) / len(inside)
        rows.append(Row(name, family, origin, op, calls, times, share, inputs, concrete, moved, group))
    return rows, order


def _inputs(op: Event | None) -> tuple[list[tuple], list[str]]:
    """Without the [] that record_shapes writes for a scalar."""
    if op is None or op.args is None:
        return [], []
    dims, types, strides = (parsed(bytes(raw)) for raw in (op.args.dims, op.args.types, op.args.strides))
    tensors = zip_longest(dims, types, strides)
    inputs = [(d, t if isinstance(t, str) else None, s) for d, t, s in tensors if d and isinstance(d, list)]
    return inputs, parsed(bytes(op.args.concrete))


def _gpu_items(gpu: list[Event], launches: list[Event], ops: list[Event]) -> list[Item]:
    by_correlation = {_correlation(launch): launch for launch in launches}
    around = lanes.innermost(ops, launches)
    items = []
    for event in gpu:
        launch = by_correlation.get(_correlation(event)) if _correlation(event) is not None else None
        items.append(Item(event, event.dur, launch, around.get(id(launch))))
    return items


def _cpu_items(ops: list[Event]) -> list[Item]:
    """The ops that do work themselves: those with no other inside, and GEMMs, whose copy of the bias is inside."""
    around = lanes.innermost(ops, list(ops))
    inside: dict[int, float] = defaultdict(float)
    for op in ops:
        if parent := around.get(id(op)):
            inside[id(parent)] += op.dur
    leaves = [op for op in ops if id(op) not in inside or names.classify(op.name)[0] == names.GEMM]
    return [Item(op, op.dur - inside.get(id(op), 0.0), None, op) for op in leaves]


def _correlation(event: Event) -> Scalar:
    return event.args.correlation if event.args else None


@cache
def is_launch(name: str) -> bool:
    return LAUNCH.match(name) is not None


@cache
def _works(name: str) -> bool:
    """Not an op that only rewrites shape and stride, nor a row of a compiled function's bookkeeping."""
    return name not in names.METADATA_OPS and not names.COMPILE_ROWS.match(name)


def _spans(inside: list[list[Item]], steps: list[Event]) -> list[float]:
    spans, before = [], float("-inf")
    for i, items in enumerate(inside):
        around = [item.event for item in items] + steps[i : i + 1]
        start = steps[i].ts if steps else min((event.ts for event in around), default=0.0)
        end = max((event.end for event in around), default=0.0)
        spans.append(max(0.0, end - max(start, before)))
        before = max(before, end)
    return spans


def busy(items: list[Item]) -> float:
    """Microseconds in which at least one of them runs."""
    return sum(end - start for start, end in stretches(item.event for item in items))


def stretches(events: Iterable[Event]) -> Iterator[tuple[float, float]]:
    """When at least one of the events runs: (start, end) of stretches that do not touch."""
    start = until = float("-inf")
    for event in sorted(events, key=attrgetter("ts")):
        if event.ts > until:
            if until > start:
                yield start, until
            start = event.ts
        until = max(until, event.end)
    if until > start:
        yield start, until
