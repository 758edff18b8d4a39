"""What stands out in a trace: a list of checks, each of which finds its thing or nothing.

findings.md says what each looks for, and from which threshold on. The checks are in checks_cpu, checks_gpu and
checks_waste.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from common import lanes, names, roofline, work
from common.events import GPU, RUNTIME, Event, Trace
from common.roofline import Bound
from common.shapes import Roof
from common.work import Item, Row, Steps

SHOWN = 3  # events of evidence
WORTH = 0.01  # of the GPU's time: less is not worth a word
FIRST = float("inf")  # at stake is whether the trace can be trusted


@dataclass
class Finding:
    """One thing that stands out. Microseconds are of one step, or of the one time that it happens."""

    id: str
    says: str  # what it means here, and what to try
    evidence: list[Event]
    at_stake_us: float  # the time that it is about: the order of the findings
    saves_us: float | None = None  # at most; None where nobody can tell, or nothing can be done


@dataclass
class Seen:
    """A trace and what the checks ask of it, each worked out once."""

    trace: Trace
    steps: Steps
    roofs: list[Roof]
    bound: Bound
    marks: list[Event] = field(default_factory=list)  # the steps' own rows on the CPU

    @cached_property
    def around(self) -> dict[int, Event]:
        """id(op or launch) -> the op around it on its thread."""
        points = [*self.trace.groups["cpu_op"], *self.trace.of(RUNTIME)]
        return lanes.innermost(self.trace.groups["cpu_op"], points)

    @property
    def n(self) -> int:
        """Steps, or 1 where the whole trace counts as one."""
        return len(self.steps.inside)

    @property
    def idle_us(self) -> float:
        """Of a step, in which the GPU waits for the CPU; 0 where it does not."""
        return self.bound.whole_us * (1 - self.bound.busy) if self.bound.kind == "launch" else 0.0

    def ancestors(self, event: Event | None) -> Iterable[Event]:
        """The ops around an op or launch, from the innermost outwards."""
        while event is not None and (event := self.around.get(id(event))):
            yield event

    def in_steps(self, events: Iterable[Event]) -> list[Event]:
        """Those that begin within a step; all of them where the trace has no steps."""
        step_of = lanes.finder(list(enumerate(self.marks)))
        return [event for event in events if not self.marks or step_of(event) is not None]

    def items(self, row: Row) -> list[Item]:
        """The GPU events behind a row of the kernel table."""
        found = []
        for item in (item for items in self.steps.inside for item in items):
            by = item.op or item.launch
            if item.event.name == row.name and (by.name if by else "") == row.op:
                found.append(item)
        return found

    def total(self, rows: Iterable[Row]) -> float:
        """Microseconds of the rows' calls in a step, on average: unlike medians these add up."""
        return sum(sum(row.times) for row in rows) / self.n

    def gpu_busy(self, event: Event) -> float:
        """The share of an event's time in which the GPU works."""
        overlaps = (min(event.end, e.end) - max(event.ts, e.ts) for e in self.trace.of(GPU))
        return sum(max(0.0, us) for us in overlaps) / event.dur if event.dur else 1.0

    def last_step(self) -> list[Event]:
        """The GPU events of the last step in the order in which they ran: what a step is like once it is warm."""
        return sorted((item.event for item in self.steps.inside[-1]), key=lambda event: event.ts)


Check = Callable[[Seen], Finding | None]


def find(trace: Trace) -> list[Finding]:
    """What applies to this trace, the weightiest first."""
    from common import checks_cpu, checks_gpu, checks_waste  # they build on the types above

    steps = work.per_step(trace)
    roofs = roofline.roofs(trace, steps)
    marks = [mark for _, mark in lanes.steps(trace)]
    seen = Seen(trace, steps, roofs, roofline.step_bound(trace, steps, roofs), marks)
    checks = [*checks_cpu.CHECKS]
    if steps.on_gpu and steps.rows:
        checks += [*checks_gpu.CHECKS, *checks_waste.CHECKS]
    found = [finding for check in checks if (finding := check(seen))]
    return sorted(found, key=lambda finding: -finding.at_stake_us)


def longest(events: Iterable[Event], most: int = SHOWN) -> list[Event]:
    return sorted(events, key=lambda event: -event.dur)[:most]


def short(event: Event) -> str:
    return names.short(event.name)
