"""What stands out in a trace: a list of checks, each of which finds its thing or nothing.

findings.md says what each looks for, and from which threshold on. The checks are in checks_gpu, checks_waste,
checks_cpu and checks_profiler.
"""

import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from common import lanes, names, roofline, work
from common.events import GPU, RUNTIME, Event, Trace
from common.roofline import Bound
from common.shapes import Roof
from common.work import Steps

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

    @cached_property
    def busy(self) -> list[tuple[float, float]]:
        """When the GPU works."""
        return list(work.stretches(self.trace.of(GPU)))

    def gpu_busy(self, event: Event) -> float:
        """The share of an event's time in which the GPU works."""
        first = max(0, bisect_right(self.busy, (event.ts, float("inf"))) - 1)
        overlap = 0.0
        for start, end in islice(self.busy, first, None):
            if start >= event.end:
                break
            overlap += max(0.0, min(end, event.end) - max(start, event.ts))
        return overlap / event.dur if event.dur else 1.0

    def a_step(self, events: Iterable[Event]) -> float:
        """Microseconds that such events take in a step: the median, for the first step is often another."""
        step_of = lanes.finder(list(enumerate(self.marks)))
        took = [0.0] * self.n
        for event in events:
            took[(step_of(event) or 0) if self.marks else 0] += event.dur
        return statistics.median(took)

    def last_step(self) -> list[Event]:
        """The GPU events of the last step in the order in which they ran: what a step is like once it is warm."""
        return sorted((item.event for item in self.steps.inside[-1]), key=lambda event: event.ts)


Check = Callable[[Seen], Finding | None]


def find(trace: Trace) -> list[Finding]:
    """What applies to this trace, the weightiest first."""
    from common import checks_cpu, checks_gpu, checks_profiler, checks_waste  # they build on the types above

    steps = work.per_step(trace)
    roofs = roofline.roofs(trace, steps)
    marks = [mark for _, mark in lanes.steps(trace)]
    seen = Seen(trace, steps, roofs, roofline.step_bound(trace, steps, roofs), marks)
    checks = [*checks_gpu.CHECKS, *checks_waste.CHECKS] if steps.on_gpu and steps.rows else []
    found = [finding for check in [*checks, *checks_cpu.CHECKS, *checks_profiler.CHECKS] if (finding := check(seen))]
    for finding in found:
        finding.evidence.sort(key=lambda event: event.ts)
    return sorted(found, key=lambda finding: -finding.at_stake_us)


def outermost(events: Iterable[Event]) -> list[Event]:
    """Without those that begin inside another."""
    outer: list[Event] = []
    for event in sorted(events, key=lambda event: (event.ts, -event.dur)):
        if not outer or event.ts >= outer[-1].end:
            outer.append(event)
    return outer


def longest(events: Iterable[Event], most: int = SHOWN) -> list[Event]:
    return sorted(events, key=lambda event: -event.dur)[:most]


def short(event: Event) -> str:
    """Some names without a signature are as long as four lines."""
    name = names.short(event.name)
    return name if len(name) <= 100 else f"{name[:97]}..."
