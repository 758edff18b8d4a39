"""Rung 3: three Linears, a GELU and a multiply: what runs on the GPU, and what does torch.compile make of it?

Guess before you run it, and write the guess down:
- How many kernels does one forward launch, and of which kinds? And compiled?
- gate, up and down do the same number of FLOPs. Do they take the same time?
- Does the GELU cost more than the multiply?

    uv run 03_simple_mlp.py --batch 64 --seq 128 --dim 768 --hidden 3072
    uv run 03_simple_mlp.py --batch 64 --seq 128 --dim 768 --hidden 3072 --compile
    uv run 03_simple_mlp.py --compile max-autotune

Look at: which kernels are the same, name for name, eager and compiled; which one is new, and what its name lists.
In Perfetto: the chain aten::linear > aten::t > aten::matmul > aten::mm, and what is left of it when compiled.
Article: Profiling in PyTorch, Part 2, second half.
"""

import copy

from common import cli, lesson
from common.session import Workload

import torch
import torch.nn.functional as F
from torch import nn


class SimpleGeGLUMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):  # x: [batch, seq, dim]; M = batch * seq rows
        gate = self.gate_proj(x)  # 2 M dim hidden FLOPs; M dim + dim hidden numbers in, M hidden out
        up = self.up_proj(x)  # the same again
        act = F.gelu(gate, approximate="tanh")  # about 9 FLOPs a number; M hidden in, M hidden out
        prod = act * up  # 1 FLOP a number; 2 M hidden in, M hidden out
        return self.down_proj(prod)  # 2 M hidden dim FLOPs; M hidden + hidden dim in, M dim out


def stated_work(rows, dim, hidden, itemsize, fused):
    size = itemsize * (rows * dim + dim * hidden + rows * hidden)
    gemm = {"family": "gemm", "flops": 2 * rows * dim * hidden, "bytes": size}
    n, wide = rows * hidden, rows * hidden * itemsize
    gelu = {"role": "gelu", "family": "elementwise", "flops": 9 * n, "bytes": 2 * wide}
    mul = {"role": "mul", "family": "elementwise", "flops": n, "bytes": 3 * wide}
    both = {"role": "fused", "family": "elementwise", "flops": 10 * n, "bytes": 3 * wide}  # without the trip to memory
    return [
        {"role": "gate", **gemm},
        {"role": "up", **gemm},
        *([both] if fused else [gelu, mul]),
        {"role": "down", **gemm},
    ]


def main():
    sizes = {"batch": 64, "seq": 128, "dim": 768, "hidden": 3072}
    example = "uv run 03_simple_mlp.py --batch 64 --seq 128 --dim 768 --hidden 3072 --compile"
    settings, args = cli.parse(cli.lesson_parser(__doc__, example, sizes, warm=True), __file__)
    rows, dim, hidden = args.batch * args.seq, args.dim, args.hidden

    def build(device, dtype):
        mlp = SimpleGeGLUMLP(dim, hidden).to(device, dtype)
        x = torch.randn(args.batch, args.seq, dim).to(device, dtype)
        run = torch.compile(mlp, mode=settings.mode) if settings.mode else mlp
        return Workload(
            name="mlp_fwd",
            forward=lambda: run(x),
            eager=lambda: mlp(x),
            wider=lambda wide: copy.deepcopy(mlp).to(wide)(x.to(wide)),
            work=stated_work(rows, dim, hidden, dtype.itemsize, fused=bool(settings.mode)),
        )

    lesson.run(settings, rows * (2 * dim + 4 * hidden) + 3 * dim * hidden, build)


if __name__ == "__main__":
    main()
