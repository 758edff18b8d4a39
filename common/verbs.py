"""What the verbs compare, decode and explain print."""

from collections.abc import Callable
from pathlib import Path
from string import ascii_uppercase

from common import compare, decode, findings, names, roofline, tables
from common.compare import Side
from common.decode import Decoded
from common.events import Trace
from common.report import line
from common.tables import count, us

from rich.console import Console
from rich.padding import Padding
from rich.text import Text


def decoded(out: Console, found: list[Decoded], full_names: bool) -> None:
    """Each name in its parts."""
    for i, one in enumerate(found):
        if i:
            line(out, "")
        line(out, one.name if full_names else names.short(one.name))
        form = f"; the form: {one.form}" if one.form else "; no rule knows this form of name"
        line(out, f"{one.family}, by {one.origin or 'a maker that the name does not tell'}{form}")
        if one.parts:
            table, sources = tables.parts(one)
            out.print(Padding(table, (0, 0, 0, 2), expand=False))
            for number, source in enumerate(sources, 1):
                line(out, f"  [{number}] {source}")
        if one.form and not one.whole:
            line(out, f"  Not explained: {', '.join(one.rest)}.")


def differing(out: Console, a: Decoded, b: Decoded) -> None:
    """The parts in which two names differ."""
    rows = decode.difference(a, b)
    same = "the names are the same" if a.name == b.name else "they differ in what no rule reads"
    line(out, "\nThe two differ in:" if rows else f"\nNo part that a rule reads differs; {same}.")
    for field, *sides in rows:
        texts = ["; ".join(f"{part.text} ({part.says})" for part in parts) or "nothing" for parts in sides]
        line(out, f"  {field}: {texts[0]} -> {texts[1]}")


def coverage(out: Console, calls: dict[str, int], found: list[Decoded]) -> None:
    """How much of the traces' kernels is explained to the last part."""
    whole = [one for one in found if one.whole]
    named, every = sum(calls[one.name] for one in whole), sum(calls.values())
    line(
        out,
        f"\nFully decoded: {len(whole)} of {len(found)} names, {named:,} of {every:,} GPU events"
        f" ({named / every if every else 1:.0%}).",
    )


def explained(out: Console, trace: Trace, full_names: bool, most: int | None = None) -> int:
    """What stands out, the weightiest first, each with its evidence; at most so many. Returns how many are left out."""
    found = findings.find(trace)
    start = min((event.ts for group in trace.groups.values() for event in group), default=0.0)
    for i, one in enumerate(found[:most], 1):
        title, _, rest = one.says.partition(":")
        out.print(Text.assemble(f"{i}. ", (f"{title}:", "bold"), rest))
        for event in one.evidence:
            name = event.name if full_names else findings.short(event)
            what = f"{name} at {(event.ts - start) / 1e3:,.3f} ms, {us(event.dur)} us"
            out.print(Padding(Text(what, style="dim"), (0, 0, 0, 3), expand=False))
    if not found:
        empty = not any(trace.groups[category] for category in trace.groups if category != "user_annotation")
        line(out, "No op and no GPU event was recorded." if empty else "Nothing stands out in this trace.")
    return len(found) - len(found[:most])


def compared(out: Console, paths: list[Path], traces: list[Trace], full_names: bool = False) -> None:
    """The first trace against each of the others: kernel by kernel, then the figures of a step side by side."""
    sides = [compare.side(trace) for trace in traces]
    for letter, path in zip(ascii_uppercase, paths, strict=False):
        line(out, f"{letter}  {path}")
    for path, trace, other in zip(paths[1:], traces[1:], sides[1:], strict=True):
        line(out, "")
        for warning in compare.warnings(traces[0], trace):
            line(out, f"Careful: {warning}.")
        if len(traces) > 2:
            line(out, f"A against B = {path.name}")
        out.print(tables.pairs(compare.pairs(sides[0], other), full_names, out.is_terminal))
        for text in _differences(sides[0], other):
            line(out, text)
    line(out, "")
    out.print(tables.figures(_figures(sides)))


def beside(out: Console, traces: dict[str, Trace], needed: Callable[[dict[str, int], int], int]) -> None:
    """The figures of several lessons' traces side by side, each with its title.

    needed: (sizes, bytes of an element) -> the bytes that any variant of a lesson must move.
    """
    for letter, title in zip(ascii_uppercase, traces, strict=False):
        line(out, f"{letter}  {title}")
    settings = [trace.lesson["settings"] for trace in traces.values()]
    least = [needed(one["sizes"], 4 if one["dtype"] == "fp32" else 2) for one in settings]
    out.print(tables.figures(_figures([compare.side(trace) for trace in traces.values()], least)))


def _differences(a: Side, b: Side) -> list[str]:
    """What the kernels alone do not say: memory traffic, and ops without GPU work."""
    said = []
    if a.bytes != b.bytes and a.steps.on_gpu and b.steps.on_gpu and not (a.unknown or b.unknown):
        verb, less = ("saves", a.bytes - b.bytes) if b.bytes < a.bytes else ("adds", b.bytes - a.bytes)
        known = f"({a.bytes:,} against {b.bytes:,} bytes)"
        said.append(f"B {verb} {tables.scaled(less, 'B')} of memory traffic a step {known}.")
    gone = {name: n - b.idle.get(name, 0) for name, n in a.idle.items() if n > b.idle.get(name, 0)}
    if gone:
        first, others = max(gone, key=lambda name: gone[name]), round(sum(gone.values())) - 1
        rest = f" and {others} others" if others else ""
        said.append(f"Gone from the CPU: {first}{rest}: no GPU work, {us(a.idle_us - b.idle_us)} us of CPU a step.")
    return said


def _figures(sides: list[Side], least: list[int] | None = None) -> list[tuple[str, list[str]]]:
    """Rows of (what, a cell for each side), each with its ratio to the first where there is one.

    least: the bytes that each side has to move. What it moves beyond them are intermediates, written and read, and
    inputs that are read twice.
    """
    work_ = "GPU operations" if all(side.steps.on_gpu for side in sides) else "operations"
    rows: list[tuple[str, list[float | None], str]] = [
        (work_, [side.launches for side in sides], ""),
        ("of them kernels", [side.steps.kernels if side.steps.on_gpu else None for side in sides], ""),
        ("busy", [side.steps.busy_us for side in sides], " us"),
        ("CPU of a profiled step", [side.steps.cpu_us or None for side in sides], " us"),
        ("unprofiled forward", [side.unprofiled_us for side in sides], " us"),
    ]
    figures = [
        (what, [_cell(value, values[0], unit) for value in values]) for what, values, unit in rows if any(values)
    ]
    if all(side.steps.on_gpu for side in sides):
        for what, off in (("memory traffic", [0] * len(sides)), ("of it intermediates", least)):
            if off:
                moved = [(side.bytes - n) / 1e6 for side, n in zip(sides, off, strict=True)]
                whole = [None if side.unknown else size for side, size in zip(sides, moved, strict=True)]
                cells = [_cell(value, whole[0], " MB") for value in whole]
                figures.append((what, [c or f"at least {us(n)} MB" for c, n in zip(cells, moved, strict=True)]))
        limits = [roofline.limit_us(side.steps, side.roofs) for side in sides]
        shares = [
            f"{limit / side.steps.busy_us:.0%}" if limit else "" for limit, side in zip(limits, sides, strict=True)
        ]
        figures.append(("at its kernels' limit", shares))
    return figures


def _cell(value: float | None, first: float | None, unit: str) -> str:
    if value is None:
        return ""
    text = us(value) + unit if unit else count(value)
    return text if not first or value == first else f"{text} ({value / first:.2f}x)"
