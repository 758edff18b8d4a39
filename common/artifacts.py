"""The two files that a run leaves: the trace, scrubbed and with what the lesson knows, and the profiler's own table."""

import json
import os
import re
import tempfile
from pathlib import Path

from common.device import CannotRun

from torch.profiler import profile


def write(path: Path, prof: profile, about: dict, device: str) -> None:
    """`path` (.json) and its .txt. Both are whole before they get their names, so nothing old is lost on a failure.

    about: becomes the trace's top-level object "lesson". Raises CannotRun or OSError.
    """
    by = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    table = prof.key_averages().table(sort_by=by, row_limit=30)
    # The profiler writes to a plain path: it puts that path into the file unescaped, and stumbles over odd ones.
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "trace.json"
        prof.export_chrome_trace(str(raw))
        trace = raw.read_text(encoding="utf-8", errors="replace") if raw.exists() else ""
        if not trace.rstrip().endswith("}"):  # the profiler does not look whether its writes succeed
            raise CannotRun(f"the profiler could not write its trace in {scratch}; is the disk full? TMPDIR moves it")
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        trace_file, table_file = Path(folder) / "trace.json", Path(folder) / "table.txt"
        trace_file.write_text(scrub(trace, about), encoding="utf-8")
        table_file.write_text(_without_folders(table), encoding="utf-8")
        os.replace(table_file, path.with_suffix(".txt"))
        os.replace(trace_file, path)


def scrub(trace: str, about: dict) -> str:
    """The trace without names of host, user or folders, and with `about` as its object "lesson".

    By text, not by parsing: the profiler's layout stays, and so does what is not quite JSON (`inf`).
    """
    value = r'"(?:host_name|traceName|username)"\s*:\s*"(?:[^"\\]|\\.)*"'
    trace = _without_folders(re.sub(rf"{value}\s*,|,\s*{value}", "", trace))
    return trace.replace('"traceEvents"', f'"lesson": {json.dumps(about)},\n    "traceEvents"', 1)


def _without_folders(text: str) -> str:
    """`/home/me/x/y.py` and `C:\\me\\y.py` -> `y.py`, where they start a string or a word."""
    return re.sub(r'(?<=["\s])(?:/|[A-Za-z]:\\)[^"\s]*[/\\]([^"\s/\\]*)', r"\1", text)
