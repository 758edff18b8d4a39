"""The typed events of a trace, and what a trace says beside them. Needs neither torch nor a GPU."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from common.names import METADATA_OPS

import msgspec

GPU = frozenset(("kernel", "Kernel", "gpu_memcpy", "gpu_memset"))
RUNTIME = frozenset(("cuda_runtime", "cuda_driver", "Runtime"))
KEPT = GPU | RUNTIME | {"cpu_op", "user_annotation", "overhead"}  # the categories that a reader here uses
MOST_EVENTS = 6_000_000  # about 2 GB: against files made to burst
LONGEST_US = 3.2e13  # a year
LATEST_US = 1e17  # some 3,000 years
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class TraceError(ValueError):
    """The file is no trace that can be read. The text is one line: which file, and what is wrong."""


Scalar = int | float | str | None
NOTHING = msgspec.Raw(b"[]")


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that a reader here uses; the others are skipped while decoding."""

    correlation: Scalar = None  # ties a kernel to its launch
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)  # of an op; `parsed` makes lists of these
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    device: Scalar = None
    bytes: Scalar = None
    occupancy: Scalar = msgspec.field(name="est. achieved occupancy %", default=None)
    shared_memory: Scalar = msgspec.field(name="shared memory", default=None)  # bytes a thread block
    warps: Scalar = msgspec.field(name="warps per SM", default=None)  # of the whole grid, spread evenly
    blocks: Scalar = msgspec.field(name="blocks per SM", default=None)  # the same
    registers: Scalar = msgspec.field(name="registers per thread", default=None)


class Event(msgspec.Struct, gc=False):
    """One event with a duration. Times are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None

    @property
    def end(self) -> float:
        return self.ts + self.dur


@cache
def parsed(raw: bytes) -> list:
    """`bytes(args.dims)` and the like as a list; what is no list, or none that can be read, is an empty one."""
    try:
        value = msgspec.json.decode(raw)
    except UNREADABLE:
        return []
    return value if isinstance(value, list) else []


def printable(name: str) -> str:
    """Without what a terminal would obey: a name is anybody's text."""
    return name if name.isprintable() else "".join(c if c.isprintable() else " " for c in name)


class SetAside(msgspec.Struct):
    """What a reader did not use: how many, and where the first of them is."""

    what: str
    count: int
    where: str


class About(msgspec.Struct):
    """What a trace says beside its events."""

    lesson: Any = None  # our own object, in traces that a lesson wrote
    devices: Any = msgspec.field(name="deviceProperties", default=None)


def _lesson(said: dict[str, Any]) -> dict[str, Any]:
    """Our own object, as far as its figures are figures: a file may have been edited."""
    work, ceilings = said.get("work"), said.get("ceilings")
    sane = isinstance(work, list) and all(
        isinstance(role, dict) and _is_number(role.get("flops", 0)) and _is_number(role.get("bytes", 0))
        for role in work
    )
    limits = {k: v for k, v in ceilings.items() if _is_number(v) and v} if isinstance(ceilings, dict) else None
    unprofiled = said.get("unprofiled_us")
    checked = {"work": work if sane else None, "ceilings": limits}
    return said | checked | {"unprofiled_us": unprofiled if _is_number(unprofiled) else None}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


class Whole(About):
    events: list[Event] = msgspec.field(name="traceEvents", default_factory=list)


class Trace:
    """The events of the categories in KEPT, by category, in the file's order."""

    def __init__(self, events: list[Event] | None = None) -> None:
        self.groups: dict[str, list[Event]] = {category: [] for category in KEPT}
        for event in events or []:
            self.groups[event.cat].append(event)
        self.lesson: dict[str, Any] = {}
        self.devices: list[dict[str, Any]] = []
        self.set_aside: list[SetAside] = []
        self._names: dict[str, str] = {}
        self._raws: dict[bytes, msgspec.Raw] = {}
        self._seen: set[tuple] = set()

    def of(self, categories: Iterable[str]) -> list[Event]:
        return [event for category in sorted(categories) for event in self.groups[category]]

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups.values())

    def add(self, events: list[Event]) -> None:
        """Keep what a reader uses."""
        groups, names, seen = self.groups, self._names, self._seen
        for event in events:
            category = event.cat
            group = groups.get(category)
            if group is None or event.ph != "X":
                continue
            if not (0 <= event.dur < LONGEST_US and abs(event.ts) < LATEST_US):
                self.put_aside(f"{category} events at an impossible time", f"{event.name[:60]}, {event.dur:.6g} us")
                continue
            name = names.get(event.name)  # one string a name, not one an event
            if name is None:
                name = names[event.name] = printable(event.name)
            event.name = name
            if category == "cpu_op":
                if name in METADATA_OPS:
                    event.args = None  # launches nothing, so nobody asks for its shapes
                elif event.args is not None:
                    self._detach(event.args)
            elif category in GPU:
                same = (name, event.ts, event.dur, event.tid, event.args.correlation if event.args else None)
                if same in seen:
                    self.put_aside("GPU events that are in the file twice", name[:60])
                    continue
                seen.add(same)
            group.append(event)
        if len(self) > MOST_EVENTS:
            raise TraceError(f"more than {MOST_EVENTS:,} events, the most that is read; profile fewer steps")

    def _detach(self, args: Args) -> None:
        """From the piece of text: ops have few distinct shapes, so each is kept once."""
        raws = self._raws
        for name in ("dims", "types", "strides", "concrete"):
            raw = getattr(args, name)
            if raw is not NOTHING:
                text = bytes(raw)
                known = raws.get(text)
                if known is None:
                    known = raws[text] = msgspec.Raw(text)
                setattr(args, name, known)

    def put_aside(self, what: str, where: str, count: int = 1) -> None:
        for one in self.set_aside:
            if one.what == what:
                one.count += count
                return
        self.set_aside.append(SetAside(what, count, where))

    def describe(self, about: About) -> None:
        self.lesson = _lesson(about.lesson) if isinstance(about.lesson, dict) else self.lesson
        if isinstance(about.devices, list):
            self.devices = [device for device in about.devices if isinstance(device, dict)]
