"""Two traces -> what became of each kernel of a step: same, renamed, fused, gone or new; and what that saved.

Kernels are matched in launch order. What has the same name is an anchor; between two anchors, GEMMs and attention are
matched by their work, several small kernels that became one count as fused, and the rest is gone or new.
"""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from common import names, roofline, work
from common.events import GPU, Trace
from common.roofline import Roof
from common.work import Row, Steps

HEAVY = (names.GEMM, names.ATTENTION)
LIGHT = (names.ELEMENTWISE, names.REDUCTION, names.COPY)


@dataclass
class Call:
    """One GPU event of a step, as its row in the kernel table says."""

    row: Row
    roof: Roof


@dataclass
class Pair:
    """What became of some calls of the first trace. Times are medians, in microseconds."""

    verdict: str  # same, renamed, fused, gone, new
    a: list[Call]
    b: list[Call]
    note: str = ""

    @property
    def a_us(self) -> float:
        return sum(call.row.median_us for call in self.a)

    @property
    def b_us(self) -> float:
        return sum(call.row.median_us for call in self.b)


@dataclass
class Side:
    """One trace of a comparison, per step."""

    steps: Steps
    roofs: list[Roof]
    unprofiled_us: float | None
    idle: dict[str, float]  # ops that only rewrite shape and stride, calls a step
    idle_us: float  # of CPU, in those ops
    bytes: int  # of memory traffic, where it is known
    unknown: list[str]  # kernels whose bytes are not known, or only as a lower bound

    @property
    def calls(self) -> list[Call]:
        return [Call(self.steps.rows[i], self.roofs[i]) for i in self.steps.order]

    @property
    def launches(self) -> float:
        return self.steps.kernels + self.steps.copies + self.steps.memsets


def side(trace: Trace) -> Side:
    steps = work.per_step(trace)
    roofs = roofline.roofs(trace, steps)
    unprofiled = trace.lesson.get("unprofiled_us")
    calls = [(steps.rows[i], roofs[i]) for i in steps.order]
    return Side(
        steps,
        roofs,
        float(unprofiled) if isinstance(unprofiled, int | float) else None,
        *work.metadata_ops(trace),
        sum(roof.bytes or 0 for _, roof in calls),
        [row.name for row, roof in calls if roof.bytes is None or roof.at_least],
    )


def pairs(a: Side, b: Side) -> list[Pair]:
    """In the order of the second trace's launches; what is gone stands where it was."""
    left, right = a.calls, b.calls
    keys = [[(call.row.name, call.row.family in HEAVY and _work(call)) for call in calls] for calls in (left, right)]
    result = []
    for tag, i, i_end, j, j_end in SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_opcodes():
        if tag == "equal":
            result += [Pair("same", [x], [y]) for x, y in zip(left[i:i_end], right[j:j_end], strict=True)]
        else:
            result += _between(left[i:i_end], right[j:j_end])
    return result


def _work(call: Call) -> tuple:
    """What tells two GEMMs apart: their FLOPs where known, else the shapes of their first operands."""
    return (call.roof.flops,) if call.roof.flops else tuple(map(tuple, call.row.dims[:2]))


def _between(left: list[Call], right: list[Call]) -> list[Pair]:
    """Calls of two stretches in which no name is the same."""
    result: list[Pair] = []
    left, right = list(left), list(right)
    for call in [call for call in right if call.row.family in HEAVY]:
        same_work = [x for x in left if x.row.family == call.row.family and _work(x) == _work(call)]
        if same_work:
            left.remove(same_work[0])
            right.remove(call)
            result.append(Pair("renamed", [same_work[0]], [call], _difference(same_work[0].row.name, call.row.name)))
    for call in [call for call in right if call.row.origin == "driver"]:  # a copy or memset, of another memory
        alike = [x for x in left if x.row.origin == "driver" and x.row.family == call.row.family]
        if alike:
            left.remove(alike[0])
            right.remove(call)
            result.append(Pair("renamed", [alike[0]], [call], _difference(alike[0].row.name, call.row.name)))
    light, made = ([call for call in calls if _is_light(call)] for calls in (left, right))
    if len(made) == 1 and len(light) > 1:
        result.append(Pair("fused", light, made))
        left, right = ([call for call in calls if not _is_light(call)] for calls in (left, right))
    elif len(made) == len(light):
        for x, y in zip(light, made, strict=True):
            if x.row.family == y.row.family:
                result.append(Pair("renamed", [x], [y], _difference(x.row.name, y.row.name)))
                left.remove(x)
                right.remove(y)
    result += [Pair("gone", [call], []) for call in left]
    return result + [Pair("new", [], [call]) for call in right]


def _is_light(call: Call) -> bool:
    return call.row.family in LIGHT and call.row.origin != "driver"


def _difference(a: str, b: str) -> str:
    """`bz -> badd`: the parts of two names that differ."""
    shorter = [names.short(name) for name in (a, b)]
    parts = [re.split(r"[_<>(), ]", name) for name in (shorter if shorter[0] != shorter[1] else (a, b))]
    changed = []
    for tag, i, i_end, j, j_end in SequenceMatcher(a=parts[0], b=parts[1], autojunk=False).get_opcodes():
        if tag != "equal":
            changed.append(
                f"{'_'.join(parts[0][i:i_end]) or '(nothing)'} -> {'_'.join(parts[1][j:j_end]) or '(nothing)'}"
            )
    return ", ".join(changed) if len(changed) <= 3 else ""


def warnings(a: Trace, b: Trace) -> list[str]:
    """What makes a comparison unfair: another GPU, another shape."""
    found = []
    if len({any(trace.of(GPU)) for trace in (a, b)}) > 1:
        found.append("only one of them has GPU events")
    devices = [
        trace.lesson.get("device") or (trace.devices[0].get("name") if trace.devices else None) for trace in (a, b)
    ]
    if devices[0] != devices[1]:
        found.append(f"recorded on different devices: {devices[0]} and {devices[1]}")
    settings = [trace.lesson.get("settings") or {} for trace in (a, b)]
    for what in ("sizes", "dtype"):
        values = [one.get(what) for one in settings]
        if values[0] != values[1] and all(values):
            found.append(f"different {what}: {values[0]} and {values[1]}")
    if not all(settings):  # other people's traces: their GEMMs tell
        shapes = [{str(r.dims[:2]) for r in work.per_step(t).rows if r.family == names.GEMM and r.dims} for t in (a, b)]
        if shapes[0] and shapes[1] and not shapes[0] & shapes[1]:
            found.append("no GEMM of the one has the shape of a GEMM of the other")
    return found
