"""What the terminal says of one trace, and how: only this module and `verbs` print."""

import io
import sys
import time
from pathlib import Path

from common import guess, reading, records, roofline, tables, work
from common.events import Trace, printable
from common.guess import Guess
from common.tables import plural, us
from common.work import Steps

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

PATIENCE_S = 2
UNBOUNDED = 10_000  # columns of a pipe or a file, where a row stays on one line


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """`| head` has read what it wanted. rich would end the program here, with status 1."""
        raise


def console() -> Console:
    """Standard output: in the terminal's width and colours, or plain where it is no terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a letter that the terminal's encoding lacks is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    out = _Console(highlight=False, emoji=False)
    return out if out.is_terminal else _Console(highlight=False, emoji=False, width=UNBOUNDED, color_system=None)


def line(out: Console, text: str) -> None:
    out.print(escape(text))


def command(out: Console, text: str) -> None:
    """A line to paste: never broken, however narrow the terminal."""
    out.print("  " + escape(text), soft_wrap=True)


def error(text: str) -> None:
    """One line on standard error."""
    print(printable(" ".join(text.split())), file=sys.stderr)


def read(path: Path) -> Trace:
    """The trace in `path`, with a progress bar on standard error once that takes seconds. Raises TraceError."""
    start = time.monotonic()
    bars: list[Progress] = []

    def tick(done: int) -> None:
        if not bars and time.monotonic() - start > PATIENCE_S:
            bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
            bar.add_task(f"reading {path.name}", total=path.stat().st_size)
            bar.start()
            bars.append(bar)
        for bar in bars:
            bar.update(bar.task_ids[0], completed=done)

    try:
        return reading.read(path, tick)
    finally:
        for bar in bars:
            bar.stop()


def show(out: Console, trace: Trace, full_names: bool = False, guessed: Guess | None = None) -> Steps:
    """The kernel table of a trace, with its roofline, and what was set aside: a section for each GPU.

    Returns what it showed, of all GPUs together.
    """
    gpus = work.devices(trace)
    for gpu in gpus if len(gpus) > 1 else [None]:
        if gpu is not None:
            line(out, f"\nGPU {gpu}, {records.device_name(trace, gpu)}")
        _section(out, trace, work.per_step(trace, gpu), full_names)
    steps = work.per_step(trace)
    for verdict in guess.verdict(guessed, steps) if guessed else ():
        line(out, verdict)
    for what, number, where in records.set_aside(trace, steps):
        line(out, f"Set aside: {number} {what} ({where}).")
    return steps


def _section(out: Console, trace: Trace, steps: Steps, full_names: bool) -> None:
    if not steps.rows:
        line(out, "No GPU event was recorded in a step." if steps.on_gpu else "No op and no GPU event was recorded.")
        return
    roofs = roofline.roofs(trace, steps)
    out.print(tables.kernels(steps, roofs, full_names, out.width if out.is_terminal else None))
    line(out, summary(steps))
    if steps.on_gpu:
        limits = roofline.peaks(trace)
        known = [f"{tflops:,.0f} TFLOP/s"] if (tflops := limits.half or limits.single) else []
        known += [f"{limits.gbps:,.0f} GB/s"] if limits.gbps else []
        line(out, f"Limits: {', '.join([*known, limits.source])}.")
        line(out, f"The step is {roofline.step_bound(trace, steps, roofs)}.")


def titles(paths: list[Path], traces: list[Trace]) -> list[str]:
    """A short name for each trace: of a lesson's, the lesson and its variant where that tells them apart."""
    short = []
    for path, trace in zip(paths, traces, strict=True):
        settings = trace.lesson.get("settings")
        variant = settings.get("variant") if isinstance(settings, dict) else None
        stem = path.name.removesuffix(".gz").removesuffix(".json")
        short.append(f"{trace.lesson.get('name')}, {variant}" if variant else stem)
    if len(set(short)) < len(short):
        short = [path.name.removesuffix(".gz").removesuffix(".json") for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def summary(steps: Steps) -> str:
    """One line: what a step launches, and for how much of it the GPU is busy."""
    busy = f"busy {us(steps.busy_us)} us of {us(steps.span_us)} us"
    busy += f" ({steps.busy_us / steps.span_us:.0%})" if steps.span_us else ""
    over = f"median of {plural(len(steps.numbers), 'step')}"
    if 1 < len(steps.spans_us) <= 5:
        over = f"steps of {', '.join(us(span) for span in steps.spans_us)} us"
    if not steps.numbers:
        over = "the trace has no ProfilerStep, so all of it counts as one step"
    if not steps.on_gpu:
        return f"A step: {plural(steps.kernels, 'working op')}, {busy}; {over}. No GPU kernels in this trace."
    made = [plural(steps.kernels, "kernel"), plural(steps.copies, "copy", "copies"), plural(steps.memsets, "memset")]
    return f"A step: {', '.join(made)}; GPU {busy}; {over}."
