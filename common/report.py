"""What the terminal says. The only module that prints."""

import sys

from common import names
from common.work import Row, Steps

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDE = 110  # columns of a terminal from which every figure gets a column of its own
UNBOUNDED = 10_000  # columns of a pipe or a file, where a row stays on one line


def console() -> Console:
    """Standard output: in the terminal's width and colours, or plain where it is no terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=UNBOUNDED, color_system=None)


def line(out: Console, text: str) -> None:
    out.print(escape(text))


def error(text: str) -> None:
    """One line on standard error."""
    print(" ".join(text.split()), file=sys.stderr)


def kernel_table(out: Console, steps: Steps, full_names: bool = False) -> None:
    """The work of one step, in launch order, and the figures below it."""
    if steps.rows:
        out.print(_terminal_table(steps, full_names, out.width) if out.is_terminal else _plain_table(steps, full_names))
        line(out, summary(steps))
    else:
        line(out, "No GPU event was recorded in a step." if steps.on_gpu else "No op and no GPU event was recorded.")
    if steps.unlaunched:
        events = plural(len(steps.unlaunched), "GPU event")
        line(out, f"Set aside: {events} with no launch in this file (launched before the recording began, or lost).")
    if steps.lost:
        launches = plural(len(steps.lost), "launch", "launches")
        line(out, f"Lost: {launches} with no GPU event in this file, the first of them {steps.lost[0].name}.")


def _terminal_table(steps: Steps, full_names: bool, width: int) -> Table:
    """Two cells stacked where the terminal is narrow, and under each name the op that launched it and its shapes."""
    wide = width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    below = "launched by, input shapes" if steps.on_gpu else "input shapes"
    table.add_column(Group("kernel" if steps.on_gpu else "op", Padding(below, (0, 0, 0, 2))), overflow="fold", ratio=1)
    for heading in ("family", "origin") if wide else ("family\norigin",):
        table.add_column(heading)
    for heading in ("a step", "median us", "min..max us") if wide else ("a\nstep", "median us\nmin..max"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for row in steps.rows:
        under = Text(f"{row.op or '?'} {_shapes(row)}" if steps.on_gpu else _shapes(row), style="dim")
        name = Group(Text(_name(row, full_names)), Padding(under, (0, 0, 0, 2)))
        per_step, median, spread, share = _figures(row)
        kind, times = [row.family, row.origin or "?"], [median, spread]
        if not wide:
            kind, times = ["\n".join(kind)], ["\n".join(times)]
        table.add_row(name, *kind, per_step, *times, share)
    return table


def _plain_table(steps: Steps, full_names: bool) -> Table:
    """For pipes and files: a line a row, a column a figure."""
    table = Table(box=None, pad_edge=False)
    for heading in ("kernel" if steps.on_gpu else "op", "family", "origin", *["launched by"] * steps.on_gpu):
        table.add_column(heading, no_wrap=True)
    table.add_column("input shapes", no_wrap=True)
    for heading in ("a step", "median us", "min..max us", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in steps.rows:
        cells = [_name(row, full_names), row.family, row.origin or "?", *[row.op or "?"] * steps.on_gpu, _shapes(row)]
        table.add_row(*(escape(cell) for cell in cells), *_figures(row))
    return table


def _name(row: Row, full: bool) -> str:
    return row.name if full else names.short(row.name)


def _shapes(row: Row) -> str:
    return " ".join(str(dims).replace(" ", "") for dims in row.dims)


def _figures(row: Row) -> tuple[str, str, str, str]:
    return count(row.per_step), us(row.median_us), f"{us(min(row.times))}..{us(max(row.times))}", f"{row.share:.0%}"


def summary(steps: Steps) -> str:
    """One line: what a step launches, and for how much of it the GPU is busy."""
    busy = f"busy {us(steps.busy_us)} us of {us(steps.span_us)} us"
    busy += f" ({steps.busy_us / steps.span_us:.0%})" if steps.span_us else ""
    over = f"median of {plural(len(steps.numbers), 'step')}"
    if not steps.numbers:
        over = "the trace has no ProfilerStep, so all of it counts as one step"
    if not steps.on_gpu:
        return f"A step: {plural(steps.kernels, 'working op')}, {busy}; {over}. No GPU kernels in this trace."
    made = [plural(steps.kernels, "kernel"), plural(steps.copies, "copy", "copies"), plural(steps.memsets, "memset")]
    return f"A step: {', '.join(made)}; GPU {busy}; {over}."


def plural(n: float, one: str, many: str = "") -> str:
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def count(n: float) -> str:
    return f"{n:.0f}" if n == int(n) else f"{n:.2f}"


def us(value: float) -> str:
    return f"{value:,.1f}" if value < 10_000 else f"{value:,.0f}"
