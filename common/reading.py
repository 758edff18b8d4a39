"""A trace file -> its events, whatever its size and faults. Reads .json and .json.gz, and pipes.

What can be read is read. What cannot is counted and named in `Trace.set_aside`, with its place in the text.

Kineto puts a fixed text between two events, so its files are decoded piece by piece: memory holds one piece of text and
the events that a reader here uses. Another writer's file is decoded in one go.
"""

import gc
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from common import repair
from common.events import UNREADABLE, About, Event, Trace, TraceError, Whole

import msgspec

PIECE = 4 << 20  # bytes of text at a time
SEPARATOR = b"\n  },\n  {"  # between two events of kineto's; no string holds it, for newlines are escaped there
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
MOST_TEXT = 512 << 20  # without a separator: against files made to burst

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
