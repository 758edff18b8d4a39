"""A trace file -> typed events, whatever its size and faults. Reads .json and .json.gz; needs neither torch nor a GPU.

What can be read is read. What cannot is counted and named in `Trace.set_aside`, with its place in the text.

Kineto puts a fixed text between two events, so its files are decoded piece by piece: memory holds one piece of text and
the events that a reader here uses. Another writer's file is decoded in one go.
"""

import gc
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from common import repair
from common.names import METADATA_OPS

import msgspec

GPU = frozenset(("kernel", "Kernel", "gpu_memcpy", "gpu_memset"))
RUNTIME = frozenset(("cuda_runtime", "cuda_driver", "Runtime"))
KEPT = GPU | RUNTIME | {"cpu_op", "user_annotation"}  # the categories that a reader here uses
PIECE = 4 << 20  # bytes of text at a time
SEPARATOR = b"\n  },\n  {"  # between two events of kineto's; no string holds it, for newlines are escaped there
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
# Bounds against files made to burst: this much text without a separator, and this many events, take about 2 GB.
MOST_TEXT = 512 << 20
MOST_EVENTS = 6_000_000
LONGEST_US = 3.2e13  # a year
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


class SetAside(msgspec.Struct):
    """What a reader did not use: how many, and where the first of them is."""

    what: str
    count: int
    where: str


class About(msgspec.Struct):
    """What a trace says beside its events."""

    lesson: Any = None  # our own object, in traces that a lesson wrote
    devices: Any = msgspec.field(name="deviceProperties", default=None)


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
            if not 0 <= event.dur < LONGEST_US:
                self.put_aside(f"{category} events of an impossible duration", f"{event.name[:60]}, {event.dur:.6g} us")
                continue
            name = event.name = names.setdefault(event.name, event.name)  # one string a name, not one an event
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
        self.lesson = about.lesson if isinstance(about.lesson, dict) else self.lesson
        if isinstance(about.devices, list):
            self.devices = [device for device in about.devices if isinstance(device, dict)]


_piece = msgspec.json.Decoder(list[Event], strict=False).decode
_whole = msgspec.json.Decoder(Whole, strict=False).decode
_about = msgspec.json.Decoder(About, strict=False).decode
_event = msgspec.json.Decoder(Event, strict=False).decode


def read(path: Path, tick: Callable[[int], object] = lambda done: None) -> Trace:
    """The trace in `path`. Raises TraceError where there is nothing to read.

    tick: called with the number of bytes of the file that have been read, now and then.
    """
    collecting = gc.isenabled()
    gc.disable()  # no event is ever garbage here, and looking for some among millions takes longer than reading them
    try:
        return _read(path, tick)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    finally:
        if collecting:
            gc.enable()


def _read(path: Path, tick: Callable[[int], object]) -> Trace:
    trace, text, offset, head = Trace(), bytearray(), 0, None
    for chunk in _chunks(path, trace, tick):
        fresh = max(0, len(text) - len(SEPARATOR))  # what is before this has been searched
        text += chunk
        if head is None and (start := _start_of_events(text, fresh)) is not None:
            head, offset, fresh = bytes(text[:start]), start, 0
            del text[:start]
        cut = text.rfind(SEPARATOR, fresh) if head is not None else -1
        if cut >= 0:
            cut += SEPARATOR.index(b",")
            _decode(trace, bytes(text[:cut]), offset)
            del text[: cut + 1]
            offset += cut + 1
        if len(text) > MOST_TEXT:
            most = f"{MOST_TEXT >> 20} MB of text without an end of an event"
            raise TraceError(f"{most}: not a trace of the torch profiler")
    if head is None:
        what = trace.set_aside[0].what if trace.set_aside else 'no list of events ("traceEvents") in it'
        raise TraceError(what if text.strip() or trace.set_aside else "an empty file")
    _finish(trace, head, bytes(text), offset)
    return trace


def _chunks(path: Path, trace: Trace, tick: Callable[[int], object]) -> Iterator[bytes]:
    with path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"  # without seeking: a pipe is welcome
        source = gzip.GzipFile(fileobj=file) if packed else file

        def place() -> int:
            return file.tell() if file.seekable() else 0

        while True:
            try:
                chunk = source.read(PIECE)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                trace.put_aside("end of the compressed file: it is cut off or damaged", f"near byte {place()}")
                return
            if not chunk:
                return
            yield chunk
            tick(place())


def _start_of_events(text: bytearray, fresh: int) -> int | None:
    """Behind the [ of the events, or None where that is not reached yet."""
    if bare := re.match(rb"\s{0,999}\[", text):
        return bare.end()
    key = EVENTS.search(text, fresh)
    return key.end() if key else None


def _decode(trace: Trace, piece: bytes, offset: int) -> None:
    try:
        events = _piece(b"[" + piece + b"]")
    except UNREADABLE:
        events = _salvage(trace, piece, offset)
    trace.add(events)


def _finish(trace: Trace, head: bytes, rest: bytes, offset: int) -> None:
    """The last events, and what the file says before and after them."""
    bare = head.strip() == b"["
    try:
        if bare:
            events = _piece(b"[" + rest)
        else:
            whole = _whole(b'{"traceEvents":[' + rest)
            trace.describe(whole)
            events = whole.events
    except UNREADABLE:
        events = _salvage(trace, rest, offset)
    trace.add(events)
    if not bare:
        try:
            trace.describe(_about(head[: head.rindex(b'"traceEvents"')] + b'"":0}'))
        except UNREADABLE:
            trace.put_aside("the file's own description, which cannot be read", "before the events")
    if not len(trace) and any("broken" in one.what for one in trace.set_aside):
        raise TraceError("no event in it can be read")


def _salvage(trace: Trace, piece: bytes, offset: int) -> list[Event]:
    """Event by event: as it is, then mended, else set aside with its place in the text."""
    events = []
    for start, text in repair.split(piece):
        try:
            events.append(_event(text))
            continue
        except UNREADABLE:
            pass
        try:
            events.append(_event(repair.mend(text)))
            trace.put_aside("events whose broken text was mended", f"byte {offset + start}")
        except UNREADABLE:
            trace.put_aside("events whose text is broken or cut off", f"byte {offset + start}")
    if not events and piece.strip(b" \t\r\n,]}"):
        trace.put_aside("events whose text is broken or cut off", f"byte {offset}")
    return events
