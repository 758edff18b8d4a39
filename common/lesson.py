"""The order of a lesson's run: session, then report on the file it wrote, then, without a GPU, on the recorded one."""

import dataclasses
import importlib.util
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from common import device as machine
from common import events, perfetto, reading, recorded, report, session, verbs, work
from common.checks_profiler import LOSES
from common.cli import Settings
from common.device import CannotRun
from common.events import Trace
from common.session import Result, Workload
from common.work import Steps

import torch
from rich.console import Console

FINDINGS = 5  # of those that `explain` has
LOST = f"The profiler lost GPU activity: do not trust this trace. Likely causes: {LOSES}"


class NotHere(Exception):
    """This variant cannot run on this machine, by no mistake of the reader's. The text says why in a line."""


@cache
def load(name: str) -> ModuleType:
    """A lesson's script as a module, by path: names that begin with a digit cannot be imported."""
    spec = importlib.util.spec_from_file_location(name, recorded.ROOT / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Build = Callable[[str, torch.dtype], Workload]


@dataclass(frozen=True)
class Beside:
    """What a GPU's trace is set against at the end: runs of the same shape, else the recorded ones."""

    runs: tuple[tuple[str, ...], ...]  # (lesson, variant) of each, with other variants that serve as well
    needed: Callable[[dict[str, int], int], int]  # (sizes, bytes of an element) -> bytes that any variant must move


def run(settings: Settings, elements: int, build: Build, beside: Beside | None = None) -> None:
    """Run a lesson. Exits with status 1 and one line on standard error where the input or the machine is at fault.

    elements: how many numbers one forward holds at once, checked against the free memory before any are made.
    build: makes the tensors, on the device and in the dtype that it is given.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is something to clean up
    try:
        path = _run(settings, elements, build, beside)
        if settings.open and path:
            perfetto.serve(path)
    except (CannotRun, events.TraceError, perfetto.CannotOpen) as error:
        _fail(settings, str(error))
    except OSError as error:
        where = str(error.filename or settings.out)
        elsewhere = "; --out DIR writes elsewhere" if where.startswith(str(settings.out)) else ""
        _fail(settings, f"cannot write to {where}: {error.strerror or error}{elsewhere}")
    except MemoryError:
        _fail(settings, "out of memory, use smaller sizes")
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text:
            _fail(settings, f"out of memory, use smaller sizes ({text.splitlines()[0]})")
        if "active driver" in text:  # a layer that LOCAL_KERNELS names, say
            _fail(settings, "this layer is Triton, which needs a GPU")
        if settings.mode and isinstance(error, torch._dynamo.exc.TorchDynamoException):
            _fail(settings, f"torch.compile failed, run without --compile ({_cause(text)})")
        raise


def _fail(settings: Settings, text: str) -> None:
    report.error(f"{settings.lesson}: {text}")
    sys.exit(1)


def _cause(text: str) -> str:
    """The line of a torch.compile error that names the error behind it."""
    lines = text.strip().splitlines()
    return next((line for line in lines if re.match(r"\w+(\.\w+)*(Error|Exception): ", line)), lines[0])[:200]


def _run(settings: Settings, elements: int, build: Build, beside: Beside | None) -> Path | None:
    """Returns the trace to open: that of this run or, where the variant cannot run here, the recorded one."""
    out = report.console()
    device, why = machine.choose(settings.device)
    machine.check_dtype(device, settings.dtype)
    machine.check_cache()
    if settings.mode:
        machine.check_compiler(device, "--compile")
    machine.check_memory(device, elements, settings.dtype)
    folder = settings.out / settings.lesson
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()  # better to fail now than after the run
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            with session.quiet():
                load = build(device, machine.DTYPES[settings.dtype])
            settings = dataclasses.replace(settings, variant=load.variant or settings.variant)
            report.line(out, _environment(settings, device))
            if load.layer:
                report.line(out, load.layer)
            with out.status("running"):
                result = session.run(settings, device, load)
    except NotHere as reason:
        report.line(out, _environment(settings, device))
        report.line(out, f"This cannot run here: {reason}")
        shown = _show_recorded(out, settings, beside)
        _next(out, settings, [shown] if shown else [])
        return recorded.ROOT / shown if shown else None
    report.line(out, _numerics(settings, result))
    trace = reading.read(result.path)
    report.line(out, _times(result, work.per_step(trace)))
    if device == "cuda":  # the question is about a GPU: without one, it and the guess belong to the recorded trace
        _ask(out, settings)
    steps = report.show(out, trace, settings.full_names, settings.guess if device == "cuda" else None)
    if device == "cpu":
        report.line(out, f"Profiled on the CPU, because {why}.")
    elif steps.lost or not (steps.on_gpu and steps.rows):
        found = f"{len(steps.lost)} launches have no kernel" if steps.lost else "no GPU event at all"
        raise CannotRun(f"{found} in {result.path}. {LOST}")
    else:
        _explain(out, trace, result.path)
        _beside(out, settings, trace, result.path, beside)
    shown = _show_recorded(out, settings, beside) if device == "cpu" else None
    _next(out, settings, [path for path in (result.path, shown) if path])
    return result.path


def _environment(settings: Settings, device: str) -> str:
    versions = machine.versions()
    triton = f"Triton {versions['triton']}" if versions["triton"] else "no Triton"
    run = f"{settings.dtype}, {settings.shape}, {'warm' if settings.warm else 'cold'}, {settings.variant}"
    return f"{machine.name(device)}, torch {versions['torch']}, {triton}; {run}"


def _numerics(settings: Settings, result: Result) -> str:
    eager = f", {result.apart:.2e} against eager" if settings.variant != "eager" else ""
    wider, limit = session.WIDER[settings.dtype], session.TOLERANCE[settings.dtype]
    return f"numerics: relative error {result.error:.2e} against {wider}{eager} (limit {limit:.0e})"


def _times(result: Result, steps: Steps) -> str:
    """What a forward takes without the profiler, and what the profiler adds."""
    clock = "CUDA events" if steps.on_gpu else "perf_counter"
    tax = f"{report.us(steps.span_us)} us a step in the profile ({steps.span_us / result.unprofiled_us:.2f}x)"
    return f"one forward: {report.us(result.unprofiled_us)} us (median of {result.repeats}, {clock}); {tax}"


def _ask(out: Console, settings: Settings) -> None:
    """The lesson's question, where the reader has not answered it yet."""
    if settings.guess is None:
        report.line(out, "\nYour guess, before you look? (--guess 3 or --guess gemm=1,copy=2 has it checked)")
        for point in settings.question:
            report.line(out, point)
        report.line(out, "")


def _next(out: Console, settings: Settings, traces: list[Path]) -> None:
    """What to do with the traces of this run, ready to paste."""
    report.line(out, "\nNext:")
    for path in traces:
        report.command(out, f"uv run -m common open {shlex.quote(str(path))}")
    for path in traces[:1]:
        eager = path.with_name(path.name.replace(f"_{settings.variant}", "_eager"))
        if eager != path and eager.exists():
            report.command(out, f"uv run -m common compare {shlex.quote(str(eager))} {shlex.quote(str(path))}")
        else:
            report.command(out, f"uv run -m common show {shlex.quote(str(path))}")
    later = sorted(path.name for path in recorded.ROOT.glob("[0-9]*.py") if path.stem > settings.lesson)
    if settings.variant == "eager":
        flags = re.sub(r"(?:^| )--guess[ =]\S+", "", shlex.join(sys.argv[1:])).strip()  # the next guess is another
        report.command(out, f"uv run {settings.lesson}.py {f'{flags} ' if flags else ''}--compile")
    elif later:
        report.command(out, f"uv run {later[0]}")


def _show_recorded(out: Console, settings: Settings, beside: Beside | None) -> Path | None:
    """The recorded GPU trace nearest to this run: of the same variant, if not of the same shape. Returns its path."""
    asked = settings.config("cuda")
    found = recorded.nearest(settings.lesson, asked)
    if found is None:
        return None
    (path, got), shown = found, found[0].relative_to(recorded.ROOT)
    trace = reading.read(path)
    gpu = trace.lesson.get("device", path.parent.parent.name)
    what = "the same command" if got == asked else f"{got}, the nearest that was recorded to {asked}"
    report.line(out, f"\nRecorded on one {gpu}: {what}")
    report.command(out, str(shown))
    if layer := trace.lesson.get("layer"):
        report.line(out, layer)
    _ask(out, settings)
    report.show(out, trace, settings.full_names, settings.guess)
    _explain(out, trace, shown)
    _beside(out, settings, trace, shown, beside)
    return shown


def _beside(out: Console, settings: Settings, trace: Trace, path: Path, beside: Beside | None) -> None:
    """The trace of this lesson against those of the rungs before it."""
    if not beside:
        return
    traces, left_out = {}, []
    for name, *variants in beside.runs:
        configs = [dataclasses.replace(settings, lesson=name, variant=one).config("cuda") for one in variants]
        found = recorded.nearest(name, configs[0])
        for own in (settings.out / name / f"{one}.json" for one in configs):
            if not own.is_file():
                continue
            try:
                read = reading.read(own)
            except events.TraceError as error:
                left_out.append(str(error))
                continue
            if "settings" in read.lesson:
                traces[str(own)] = read
                break
            left_out.append(f"{own}: it is no trace of a lesson")
        else:
            if found:
                traces[f"{found[0].relative_to(recorded.ROOT)} (recorded)"] = reading.read(found[0])
    report.line(out, "\nBeside the rungs before:")
    for why in left_out:
        report.line(out, f"Left out: {why}")
    verbs.beside(out, traces | {str(path): trace}, beside.needed)


def _explain(out: Console, trace: Trace, path: Path) -> None:
    report.line(out, "\nWhat stands out:")
    if left := verbs.explained(out, trace, full_names=False, most=FINDINGS):
        report.line(out, f"{report.plural(left, 'finding')} more:")
        report.command(out, f"uv run -m common explain {shlex.quote(str(path))}")
