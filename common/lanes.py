"""Where an event lies on the CPU: in which step of the profiler, and in which op on its thread."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter

from common.events import Event, Trace

STEP = re.compile(r"^Profiler?Step#(\d{1,18})$")


def steps(trace: Trace) -> list[tuple[int, Event]]:
    marks = [(int(m[1]), e) for e in trace.groups["user_annotation"] if (m := STEP.match(e.name))]
    return sorted(marks, key=lambda mark: mark[1].ts)


def finder(marks: list[tuple[int, Event]]) -> Callable[[Event], int | None]:
    """Which of the steps an event begins in."""
    starts = [step.ts for _, step in marks]

    def step_of(event: Event) -> int | None:
        i = bisect_right(starts, event.ts) - 1
        return i if i >= 0 and event.ts < marks[i][1].end else None

    return step_of


def innermost(ops: list[Event], points: list[Event]) -> dict[int, Event]:
    """id(point) -> the innermost op around it on its thread, other than itself."""
    by_thread: dict[tuple, tuple[list[Event], list[Event]]] = defaultdict(lambda: ([], []))
    for which, events in enumerate((ops, points)):
        for event in events:
            by_thread[event.pid, event.tid][which].append(event)
    around = {}
    for inner, asked in by_thread.values():
        if not asked:
            continue
        for events in (inner, asked):  # by start, and the longer first: two fast sorts
            events.sort(key=attrgetter("dur"), reverse=True)
            events.sort(key=attrgetter("ts"))
        open_ops: list[Event] = []
        i, n = 0, len(inner)
        for point in asked:
            while i < n and (inner[i].ts < point.ts or (inner[i].ts == point.ts and inner[i].dur > point.dur)):
                op = inner[i]
                while open_ops and open_ops[-1].ts + open_ops[-1].dur <= op.ts:
                    open_ops.pop()
                open_ops.append(op)
                i += 1
            while open_ops and open_ops[-1].ts + open_ops[-1].dur <= point.ts:
                open_ops.pop()
            if open_ops:
                around[id(point)] = open_ops[-1]
    return around
