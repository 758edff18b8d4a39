"""A trace file -> typed events. Reads .json and .json.gz; needs neither torch nor a GPU."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import msgspec


class TraceError(ValueError):
    """The file is no trace that can be read. The text is one line: which file, and what is wrong."""


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that a reader here uses; the others are skipped while decoding."""

    correlation: Any = None  # ties a kernel to its launch
    external: Any = msgspec.field(name="External id", default=None)
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    strides: Any = msgspec.field(name="Input Strides", default=None)
    device: Any = None
    stream: Any = None
    bytes: Any = None


class Event(msgspec.Struct, gc=False):
    """One event with a duration. Times are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None

    @property
    def end(self) -> float:
        return self.ts + self.dur


class Trace(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")
    lesson: dict[str, Any] | None = None  # our own object, in traces that a lesson wrote
    devices: list[dict[str, Any]] = msgspec.field(name="deviceProperties", default_factory=list)


def read(path: Path) -> Trace:
    """The complete events ("ph": "X") of a torch profiler trace. Raises TraceError where there is nothing to read."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        trace = msgspec.json.decode(data, type=Trace, strict=False)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise TraceError(f"{path}: the compressed file is cut off or damaged") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not a whole trace of the torch profiler ({error})") from None
    trace.events = [event for event in trace.events if event.ph == "X"]
    return trace
