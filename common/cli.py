"""The flags that lessons share, and the one frozen Settings they become."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the flags of a run need no reader
    from common.guess import Guess

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # of torch.compile
DEFAULT_SCHEDULE = (1, 1, 3)
MOST_STEPS = 1000  # a trace of more is no lesson, and a mistyped schedule would run for hours


@dataclass(frozen=True)
class Settings:
    """One run, as asked for. `config` names its files, so everything that changes the run is in it."""

    lesson: str  # "03_simple_mlp"
    sizes: dict[str, int]  # {"batch": 64, ...}, in the order of the file name
    dtype: str  # bf16, fp16 or fp32
    device: str | None  # cuda, cpu, or None: the GPU if there is one
    warm: bool
    variant: str  # eager, compile, compile-max-autotune, liger, ...
    mode: str | None  # of torch.compile; None where nothing is compiled
    schedule: tuple[int, int, int]  # wait, warmup, active
    ceilings: bool
    full_names: bool
    out: Path
    guess: "Guess | None"
    open: bool  # in the Perfetto UI, when done
    question: tuple[str, ...]  # what to guess, from the lesson's docstring

    @property
    def shape(self) -> str:
        return "x".join(str(n) for n in self.sizes.values())

    def config(self, device: str) -> str:
        """The file name without its ending: `64x128x768x3072_bf16_warm_compile`."""
        parts = [self.shape, self.dtype, "warm" if self.warm else "cold", self.variant]
        if self.schedule != DEFAULT_SCHEDULE:
            parts.append("s" + "-".join(str(n) for n in self.schedule))
        if device == "cpu":
            parts.append("cpu")
        return "_".join(parts)


def lesson_parser(
    doc: str | None, example: str, sizes: dict[str, int], warm: bool, variant: str = "eager"
) -> argparse.ArgumentParser:
    """A parser with the flags of every lesson; a lesson adds its own and calls `parse`.

    sizes: the size flags and their defaults. warm: whether a bare run warms up. A `variant` other than eager is not
    for compiling.
    """
    parser = argparse.ArgumentParser(
        description=next(iter((doc or "").splitlines()), ""),  # python -OO leaves no docstrings
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, default in sizes.items():
        parser.add_argument(*spellings(name), type=_size, default=default, metavar="N", help=f"default {default}")
    if variant == "eager":
        modes = f"torch.compile it; MODE is one of {', '.join(MODES)}"
        parser.add_argument("--compile", nargs="?", const="default", choices=MODES, metavar="MODE", help=modes)
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16", help="default bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU if there is one")
    usual = {warm: " (default)"}
    warmth = parser.add_mutually_exclusive_group()
    warmth.add_argument(
        "--warmup", dest="warm", action="store_true", help=f"run before the profile{usual.get(True, '')}"
    )
    warmth.add_argument(
        "--cold", dest="warm", action="store_false", help=f"no run before the profile{usual.get(False, '')}"
    )
    parser.set_defaults(warm=warm, size_names=tuple(sizes), variant=variant, compile=None, question=_question(doc))
    steps = "steps of the profiler, default 1,1,3"
    parser.add_argument(
        "--schedule", type=_schedule, default=DEFAULT_SCHEDULE, metavar="WAIT,WARMUP,ACTIVE", help=steps
    )
    parser.add_argument(
        *spellings("no_ceilings"), dest="ceilings", action="store_false", help="do not measure copy and GEMM speed"
    )
    parser.add_argument("--guess", type=guess, metavar="GUESS", help="what a step puts on the GPU: 3, or gemm=1,copy=2")
    parser.add_argument(*spellings("full_names"), action="store_true", help="print kernel names in full")
    parser.add_argument("--open", action="store_true", help="then open the trace in Perfetto (it is not uploaded)")
    parser.add_argument(
        "--out", type=Path, default=Path("traces"), metavar="DIR", help="where traces go, default traces/"
    )
    return parser


def parse(
    parser: argparse.ArgumentParser, script: str, argv: list[str] | None = None
) -> tuple[Settings, argparse.Namespace]:
    """The Settings, and the namespace for the flags that only this lesson has. Wrong usage exits with status 2."""
    args = parser.parse_args(argv)
    compiled = "compile" if args.compile == "default" else f"compile-{args.compile}"
    settings = Settings(
        lesson=Path(script).stem,
        sizes={name: getattr(args, name) for name in args.size_names},
        dtype=args.dtype,
        device=args.device,
        warm=args.warm,
        variant=compiled if args.compile else args.variant,
        mode=args.compile,
        schedule=args.schedule,
        ceilings=args.ceilings,
        full_names=args.full_names,
        out=args.out,
        guess=args.guess,
        open=args.open,
        question=args.question,
    )
    return settings, args


def spellings(name: str) -> list[str]:
    """`in_dim` as the articles write it, `--in_dim`, and as other tools do, `--in-dim`."""
    return list(dict.fromkeys(("--" + name, "--" + name.replace("_", "-"))))


def guess(text: str) -> "Guess":
    """The type of --guess, here and in the readers' own commands."""
    from common import guess as reader

    return reader.argument(text)


def _question(doc: str | None) -> tuple[str, ...]:
    """The points of "Guess before you run it" in a lesson's docstring, which are lines that begin with a dash."""
    return tuple(line for line in (doc or "").splitlines() if line.startswith("- "))


def _size(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 up")
    return int(text)


def _schedule(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9},[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not three whole numbers like 1,1,3")
    wait, warmup, active = (int(part) for part in text.split(","))
    if active < 1 or wait + warmup + active > MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1 active step and at most {MOST_STEPS} steps in all")
    return wait, warmup, active
