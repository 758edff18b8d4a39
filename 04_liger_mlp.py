"""Rung 4: the same MLP with a kernel that somebody wrote by hand. Does it beat the one that torch.compile generated?

Guess before you run it, and write the guess down:
- How many kernels does one forward launch? Which are the same as in rung 3?
- Is the hand-written kernel faster than Inductor's, on the shape that Inductor compiled for?
- What is missing from the CPU lane, compared with rung 3 compiled?

    uv run 04_liger_mlp.py --batch 64 --seq 128 --dim 768 --hidden 3072
    uv run 04_liger_mlp.py --source package      # the layer from the liger-kernel package, without the Hub

Look at: what runs between the GEMMs, the op that launched it, and its time beside that of rung 3, compiled and
autotuned.
The layer is Triton, compiled at its first launch: it needs a GPU. Without one, the recorded trace is shown.
Article: Profiling in PyTorch, Part 2, last section (there the script is called 03_kernels_mlp.py).
"""

import copy
import dataclasses
from importlib.metadata import version
from types import SimpleNamespace

from common import cli, device, hub, lesson
from common.session import Workload

import torch
import torch.nn.functional as F
from kernels import get_kernel
from torch import nn


class SimpleGeGLUMLP(nn.Module):  # rung 3's, for the weights and for the check
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


def from_hub(on):
    # Stays at version 1, the articles': from version 2 on the layers are stateless and this call raises TypeError.
    backend = "cpu" if on == "cpu" else None  # a torch built for CUDA takes a CUDA build even without a GPU
    try:
        layer = get_kernel(hub.REPO, version=1, backend=backend).layers.LigerGEGLUMLP
    except Exception as error:  # of a dozen kinds, from the network to the import
        raise hub.explain(error) from error
    if folder := hub.local_folder():
        return layer, "liger-local", f"LigerGEGLUMLP from the folder {folder.name} (LOCAL_KERNELS), not from the Hub"
    return layer, "liger", f"LigerGEGLUMLP from the Hub, {hub.REPO} version 1"


def from_package(on):
    if on == "cpu":
        raise lesson.NotHere("the layer of the liger-kernel package is Triton, which needs a GPU.")
    try:
        from liger_kernel.transformers.geglu import LigerGEGLUMLP
    except ImportError as error:
        raise device.CannotRun(f"--source package: {error}; run {hub.PACKAGE}") from None
    return LigerGEGLUMLP, "liger-package", f"LigerGEGLUMLP from the package liger-kernel {version('liger-kernel')}"


def load_layer(source, on):
    """(class, name of the variant, where it came from)."""
    if source == "package":
        return from_package(on)
    try:
        return from_hub(on)
    except hub.Unavailable as why:
        if on == "cpu" and (why.no_build or why.unreachable):
            raise lesson.NotHere(f"{why.reason}, and the layer is Triton, which needs a GPU.") from why
        if why.unreachable:
            try:
                layer, variant, origin = from_package(on)
                return layer, variant, f"{origin}, because {why.reason}"
            except device.CannotRun:
                pass
        raise device.CannotRun(str(why)) from why


def stated_work(rows, dim, hidden, itemsize):
    size = itemsize * (rows * dim + dim * hidden + rows * hidden)
    gemm = {"family": "gemm", "flops": 2 * rows * dim * hidden, "bytes": size}
    n = rows * hidden  # of gate and of up, which are read, and of their GeGLU, which is written
    fused = {"role": "fused", "family": "elementwise", "flops": 10 * n, "bytes": 3 * n * itemsize}
    return [{"role": "gate", **gemm}, {"role": "up", **gemm}, fused, {"role": "down", **gemm}]


def main():
    sizes = {"batch": 64, "seq": 128, "dim": 768, "hidden": 3072}
    example = "uv run 04_liger_mlp.py --batch 64 --seq 128 --dim 768 --hidden 3072"
    parser = cli.lesson_parser(__doc__, example, sizes, warm=True, variant="liger")
    parser.add_argument(
        "--source", choices=("hub", "package"), default="hub", help="where the layer comes from, default hub"
    )
    settings, args = cli.parse(parser, __file__)
    if args.source == "package":
        settings = dataclasses.replace(settings, variant="liger-package")
    rows, dim, hidden = args.batch * args.seq, args.dim, args.hidden

    def build(on, dtype):
        if on == "cuda":
            device.check_compiler(on, "Triton")
        layer, variant, origin = load_layer(args.source, on)
        mlp = SimpleGeGLUMLP(dim, hidden).to(on, dtype)
        try:
            liger = layer(SimpleNamespace(hidden_size=dim, intermediate_size=hidden)).to(on, dtype).eval()
            liger.load_state_dict(mlp.state_dict())
        except (TypeError, AttributeError) as error:  # a folder with version 2 or 3, say
            raise device.CannotRun(f"{origin}: not the layer of version 1 ({error})") from None
        x = torch.randn(args.batch, args.seq, dim).to(on, dtype)
        return Workload(
            name="mlp_fwd",
            forward=lambda: liger(x),
            eager=lambda: mlp(x),
            wider=lambda wide: copy.deepcopy(mlp).to(wide)(x.to(wide)),
            work=stated_work(rows, dim, hidden, dtype.itemsize),
            layer=origin,
            variant=variant,
        )

    lesson.run(settings, rows * (2 * dim + 4 * hidden) + 6 * dim * hidden, build)


if __name__ == "__main__":
    main()
