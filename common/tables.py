"""Rows -> rich tables and the words in them. Nothing here prints."""

from common import names
from common.compare import Pair
from common.decode import Decoded
from common.roofline import Roof
from common.work import Row, Steps

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDE = 110  # columns of a terminal from which every figure gets a column of its own


def kernels(steps: Steps, roofs: list[Roof], full_names: bool, width: int | None) -> Table:
    """The kernel table, for a terminal of that width or, without one, for a pipe."""
    return _plain(steps, roofs, full_names) if width is None else _terminal(steps, roofs, full_names, width >= WIDE)


def _terminal(steps: Steps, roofs: list[Roof], full_names: bool, wide: bool) -> Table:
    """Under each name the op that launched it, its shapes, and its roofline; two cells stacked where it is narrow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    below = "launched by, input shapes" if steps.on_gpu else "input shapes"
    table.add_column(Group("kernel" if steps.on_gpu else "op", Padding(below, (0, 0, 0, 2))), overflow="fold", ratio=1)
    for heading in ("family", "origin") if wide else ("family\norigin",):
        table.add_column(heading)
    for heading in ("a step", "median us", "min..max us") if wide else ("a\nstep", "median us\nmin..max"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for row, roof in zip(steps.rows, roofs, strict=True):
        under = [f"{row.op or '?'} {_shapes(row)}" if steps.on_gpu else _shapes(row), reached(roof)]
        text = Text("\n".join(part for part in under if part), style="dim")
        name = Group(Text(_name(row, full_names)), Padding(text, (0, 0, 0, 2)))
        per_step, median, spread, share = _figures(row)
        kind, times = [row.family, row.origin or "?"], [median, spread]
        if not wide:
            kind, times = ["\n".join(kind)], ["\n".join(times)]
        table.add_row(name, *kind, per_step, *times, share)
    return table


def reached(roof: Roof) -> str:
    """`38.7 GFLOP, 67.6 MB: 679 TFLOP/s, 1,188 GB/s; 85% of the compute limit`, as far as it is known."""
    done, rates = [], []
    if roof.flops:
        done.append(scaled(roof.flops, "FLOP"))
    if roof.bytes:
        done.append(f"{'at least ' * roof.at_least}{scaled(roof.bytes, 'B')}")
    if roof.tflops and roof.bound != "latency":
        rates.append(f"{roof.tflops:,.3g} TFLOP/s")
    if roof.gbps and roof.bound != "latency":
        rates.append(f"{roof.gbps:,.4g} GB/s")
    text = ", ".join(done) + (f": {', '.join(rates)}" if rates else "")
    if roof.of_ideal is None or roof.ideal_us is None:
        return "; ".join(part for part in (text, roof.note) if part)
    if roof.bound == "latency":
        return f"{text}; latency-bound: its work alone would take {max(roof.ideal_us, 0.01):.2f} us or less"
    note = ", from cache or past a modest ceiling" if roof.of_ideal > 1.05 else ""
    return f"{text}; {roof.of_ideal:.0%} of the {roof.bound} limit ({us(roof.ideal_us)} us){note}"


def scaled(n: int, unit: str) -> str:
    value = float(n)
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000 or prefix == "T":
            break
        value /= 1000
    return f"{value:.4g} {prefix}{unit}"


def _plain(steps: Steps, roofs: list[Roof], full_names: bool) -> Table:
    """For pipes and files: a line a row, a column a figure."""
    table = Table(box=None, pad_edge=False)
    for heading in ("kernel" if steps.on_gpu else "op", "family", "origin", *["launched by"] * steps.on_gpu):
        table.add_column(heading, no_wrap=True)
    table.add_column("input shapes", no_wrap=True)
    more = ("FLOP", "bytes", "TFLOP/s", "GB/s", "bound", "ideal us", "of ideal") if steps.on_gpu else ()
    for heading in ("a step", "median us", "min..max us", "share", *more):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, roof in zip(steps.rows, roofs, strict=True):
        cells = [_name(row, full_names), row.family, row.origin or "?", *[row.op or "?"] * steps.on_gpu, _shapes(row)]
        table.add_row(*(escape(cell) for cell in cells), *_figures(row), *(_roof_cells(roof) if steps.on_gpu else ()))
    return table


def _roof_cells(roof: Roof) -> tuple[str, ...]:
    """Blank where a figure is not known."""
    return (
        f"{roof.flops:,}" if roof.flops else "",
        f"{'>=' * roof.at_least}{roof.bytes:,}" if roof.bytes else "",
        f"{roof.tflops:,.3g}" if roof.tflops else "",
        f"{roof.gbps:,.4g}" if roof.gbps else "",
        roof.bound or "",
        "" if roof.ideal_us is None or roof.bound == "latency" else us(roof.ideal_us),
        "" if roof.of_ideal is None or roof.bound == "latency" else f"{roof.of_ideal:.0%}",
    )


def _name(row: Row, full: bool) -> str:
    return row.name if full else names.short(row.name)


def _shapes(row: Row) -> str:
    return " ".join(str(dims).replace(" ", "") for dims in row.dims)


def _figures(row: Row) -> tuple[str, str, str, str]:
    return count(row.per_step), us(row.median_us), f"{us(min(row.times))}..{us(max(row.times))}", f"{row.share:.0%}"


def pairs(found: list[Pair], full_names: bool, fold: bool) -> Table:
    """What became of each kernel: the verdict, the names, the times."""
    table = Table(box=box.SIMPLE_HEAD if fold else None, pad_edge=False, show_edge=False)
    table.add_column("")
    for heading in ("A", "B"):
        table.add_column(heading, overflow="fold", ratio=1 if fold else None)
    for heading in ("A us", "B us"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in found:
        sides = [" + ".join(_name(call.row, full_names) for call in calls) for calls in (pair.a, pair.b)]
        if pair.verdict == "same":
            sides[1] = "="
        if pair.note and fold:
            sides[1] += f"\n  {pair.note}"
        elif pair.note:
            sides[1] += f" ({pair.note})"
        times = [us(value) if calls else "" for value, calls in ((pair.a_us, pair.a), (pair.b_us, pair.b))]
        table.add_row(pair.verdict, *(escape(text) for text in sides), *times)
    return table


def figures(rows: list[tuple[str, list[str]]]) -> Table:
    """The figures of several traces side by side."""
    table = Table(box=None, pad_edge=False)
    table.add_column("a step")
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(rows[0][1])]:
        table.add_column(letter, justify="right")
    for what, cells in rows:
        table.add_row(what, *cells)
    return table


def parts(one: Decoded) -> tuple[Table, list[str]]:
    """The parts of a name in the name's order, and the sources that they are documented in."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("part", "field", "says", "how sure"):
        table.add_column(heading, overflow="fold")
    sources = list(dict.fromkeys(part.source for part in one.parts if part.source))
    for part in one.parts:
        sure = f"documented [{sources.index(part.source) + 1}]" if part.source else "inferred"
        table.add_row(*(escape(cell) for cell in (part.text[:60], part.field, part.says, sure)))
    return table, sources


def plural(n: float, one: str, many: str = "") -> str:
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def count(n: float) -> str:
    return f"{n:.0f}" if n == int(n) else f"{n:.2f}"


def us(value: float) -> str:
    return f"{value:,.1f}" if value < 10_000 else f"{value:,.0f}"
