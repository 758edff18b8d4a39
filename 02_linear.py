"""Rung 2: nn.Linear is a matmul, a transpose and a bias. How many kernels is that?

Guess before you run it, and write the guess down:
- Is there a kernel for the transpose of the weight? For the bias?
- What can --compile still fuse?

    uv run 02_linear.py --batch 1024 --in_dim 32 --out_dim 64
    uv run 02_linear.py --batch 1024 --in_dim 32 --out_dim 64 --compile

Look at: the number of kernels a step, the op that launched them, the letters at the end of the kernel's name (the
layout), and whether that name changes when compiled. In Perfetto: `aten::t` and the GPU lane under it.
Article: Profiling in PyTorch, Part 2, first half.
"""

import copy

from common import cli, lesson
from common.session import Workload

import torch
from torch import nn


def stated_work(batch, in_dim, out_dim, itemsize):
    # In: x [batch, in], weight [out, in], bias [out]. Out: y [batch, out]. The bias's batch * out adds are not counted.
    numbers = batch * in_dim + out_dim * in_dim + out_dim + batch * out_dim
    flops = 2 * batch * in_dim * out_dim
    return [{"role": "linear", "family": "gemm", "flops": flops, "bytes": itemsize * numbers}]


def main():
    sizes = {"batch": 1024, "in_dim": 32, "out_dim": 64}
    parser = cli.lesson_parser(__doc__, "uv run 02_linear.py --batch 1024 --in_dim 32 --out_dim 64", sizes, warm=True)
    settings, args = cli.parse(parser, __file__)
    batch, in_dim, out_dim = args.batch, args.in_dim, args.out_dim

    def build(device, dtype):
        linear = nn.Linear(in_dim, out_dim, bias=True).to(device, dtype)  # y = x @ weight.T + bias
        x = torch.randn(batch, in_dim).to(device, dtype)
        run = torch.compile(linear, mode=settings.mode) if settings.mode else linear
        return Workload(
            name="linear_fwd",
            forward=lambda: run(x),
            eager=lambda: linear(x),
            wider=lambda wide: copy.deepcopy(linear).to(wide)(x.to(wide)),
            work=stated_work(batch, in_dim, out_dim, dtype.itemsize),
        )

    lesson.run(settings, batch * (in_dim + out_dim) + (in_dim + 1) * out_dim, build)


if __name__ == "__main__":
    main()
