"""What the lessons share: the flags, the profiled run, and the readers of the trace it writes.

Lessons import this package before torch, whose import takes seconds: from then on Ctrl-C ends in one line, without a
traceback.
"""

import sys
from types import TracebackType


def _one_line_for_ctrl_c(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _one_line_for_ctrl_c
