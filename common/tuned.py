"""Launching a tuned Triton kernel. Tuning picks and compiles once for each shape; after that only the launch is left.

Triton's own way there took 40 us of the CPU and more at every call (bench/NOTES.md); the GPU needs 19 us for a small
shape. The first launch of a shape tunes by CUDA graphs, so it cannot be inside of another graph's capture.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

_ready: dict[tuple, tuple] = {}  # kernel and key -> (compiled kernel, grid, its constants)


def launch(
    kernel: Any, key: tuple, tiles: Callable[[dict], int], most: int | None, *args: Any, **constants: Any
) -> None:
    """Launch an autotuned kernel, whose constants come last among its parameters.

    key: all that Triton compiles for, besides the kernel: sizes, dtypes, alignment, the device.
    tiles: a configuration -> how many tiles it cuts the output in.
    most: how many programs run at once, where each goes over many tiles; None, where there is one for each tile. The
    grid is the smallest that takes no more rounds: 1536 tiles are 12 rounds for 132 programs and for 128, to whom that
    leaves more of the power (0.4 to 0.9 % in bench/tricks.py).
    """

    def grid(config: dict) -> tuple[int]:
        rounds = ceil(tiles(config) / most) if most else 1
        return (ceil(tiles(config) / rounds),)

    key = (kernel, *key)
    if key not in _ready:
        compiled = kernel[grid](*args, **constants)
        config = kernel.best_config.kwargs
        names = kernel.arg_names[len(args) :]
        _ready[key] = compiled, (*grid(config), 1, 1), [(config | constants).get(name) for name in names]
        return
    compiled, size, rest = _ready[key]
    compiled[size](*args, *rest)
