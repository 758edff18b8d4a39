"""What the lessons share: the flags, the profiled run, and the readers of the trace it writes.

Lessons import this package before torch, whose import takes seconds and swallows some interrupts: from then on Ctrl-C
ends a lesson in one line, at any moment.
"""

import os
import signal
import sys
from pathlib import Path
from types import TracebackType


def _quit(signum: int, frame: object) -> None:
    """Until a lesson begins to write there is nothing to clean up, so nothing may get in the way."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def _one_line_for_ctrl_c(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Also where an error on the way out, as of the profiler, has taken the interrupt's place."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            return
        cause = cause.__cause__ or cause.__context__
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _one_line_for_ctrl_c
if Path(sys.argv[0]).name[:1].isdigit():  # a lesson is run; lesson.run gives Ctrl-C its usual meaning back
    signal.signal(signal.SIGINT, _quit)
