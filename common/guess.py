"""A reader's guess of a step's GPU work -> how close it was, each difference explained from what is in the trace."""

import argparse
import re
from dataclasses import dataclass

from common import names
from common.work import Row, Steps

FAMILIES = (
    *(names.GEMM, names.ATTENTION, names.ELEMENTWISE, names.REDUCTION),
    *(names.COPY, names.MEMSET, names.COMMUNICATION, names.OTHER),
)


@dataclass(frozen=True)
class Guess:
    """Counts by family, or one number for all that a step puts on the GPU, copies and memsets included."""

    total: int | None
    families: dict[str, int]


def parse(text: str) -> Guess:
    """`3`, or `gemm=1,copy=2`. Raises ValueError whose text says what is wrong."""
    if re.fullmatch(r"[0-9]{1,6}", text):
        return Guess(int(text), {})
    families: dict[str, int] = {}
    for part in text.split(","):
        family, _, number = part.partition("=")
        if family not in FAMILIES or not re.fullmatch(r"[0-9]{1,6}", number) or family in families:
            raise ValueError(f"{text[:60]!r} is neither a number nor like gemm=1,copy=2 ({', '.join(FAMILIES)})")
        families[family] = int(number)
    return Guess(None, families)


def argument(text: str) -> Guess:
    """`parse` as argparse wants it."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def verdict(guess: Guess, steps: Steps) -> list[str]:
    """Lines that set the guess beside the trace."""
    rows = steps.rows
    if guess.total is not None:
        return [_total(guess.total, rows, "kernel" if steps.on_gpu else "working op")]
    lines = []
    for family in FAMILIES:
        found = [row for row in rows if row.family == family]
        guessed = guess.families.get(family)
        if guessed is not None:
            lines.append(_line(family, guessed, found))
        elif found:
            lines.append(f"{family}: not in your guess, and the trace has {_list(found)}.")
    return lines


def _total(guessed: int, rows: list[Row], what: str) -> str:
    there = sum(row.per_step for row in rows)
    if guessed == there:
        return f"You guessed {guessed}, and so it is: {_list(rows)}."
    driver = [row for row in rows if row.origin == "driver"]
    own = sum(row.per_step for row in rows if row.origin != "driver")
    if not driver:
        return f"You guessed {guessed}, the trace has {there:g}: {_list(rows)}."
    return f"You guessed {guessed}, the trace has {there:g}: {own:g} {what}{'s' * (own != 1)}, and {_list(driver)}."


def _line(what: str, guessed: int, rows: list[Row]) -> str:
    there = sum(row.per_step for row in rows)
    if guessed == there:
        return (
            f"{what}: you guessed {guessed}, and so it is: {_list(rows)}." if rows else f"{what}: none, as you guessed."
        )
    return f"{what}: you guessed {guessed}, the trace has {there:g}" + (f": {_list(rows)}." if rows else ".")


def _list(rows: list[Row]) -> str:
    """`2 Memset of 4 bytes by aten::mm, nvjet_... by aten::mm`."""
    parts = []
    for row in rows:
        number = f"{row.per_step:g} x " if row.per_step != 1 else ""
        size = f" of {row.moved:,} bytes" if row.moved is not None else ""
        by = f" by {row.op}" if row.op and row.op != row.name else ""
        parts.append(f"{number}{names.short(row.name)}{size}{by}")
    return "; ".join(parts)
