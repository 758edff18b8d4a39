"""Rung 1: what does the GPU do for add(matmul(x, w), b)?

Guess before you run it, and write the guess down:
- How many kernels does one step launch: one, two, more? And with --compile, which is said to fuse?
- At --size 64, for how much of a step is the GPU busy? And at --size 4096?
- Without a run before the profile (the default here), which step is the longest, and where in it is the time?

    uv run 01_matmul_add.py --size 64                        # nothing but the inputs has been on the GPU before
    uv run 01_matmul_add.py --size 64 --schedule 0,0,20      # and the very first run is recorded: the default skips two
    uv run 01_matmul_add.py --size 64 --warmup
    uv run 01_matmul_add.py --size 4096 --warmup [--compile]
    uv run 01_matmul_add.py --size 64 --warmup --batched     # a batch axis: what does aten::matmul call now?

Look at: the op that launched each kernel, GPU busy against the step, min and max of the same kernel. In Perfetto:
the first step beside the others, and what stands between `matmul_add` and its ops; the synchronize after the last.
Article: Profiling in PyTorch, Part 1.
"""

import dataclasses

from common import cli, lesson
from common.session import Workload

import torch


def fn(x, w, b):
    # n x n each (--batched: n of them). matmul: 2 n^3 FLOPs; reads x and w, writes their product: 3 n^2 numbers.
    # add: n^2 FLOPs; reads the product and b, writes the sum: 3 n^2 numbers.
    return torch.add(torch.matmul(x, w), b)


def stated_work(batch, n, itemsize, compiled):
    gemm, matrix = 2 * batch * n**3, batch * n**2 * itemsize
    if compiled:  # as one op, if it becomes one: x, w and b in, the sum out; the adds are not counted
        return [{"role": "addmm", "family": "gemm", "flops": gemm, "bytes": 4 * matrix}]
    matmul = {"role": "matmul", "family": "gemm", "flops": gemm, "bytes": 3 * matrix}
    return [matmul, {"role": "add", "family": "elementwise", "flops": batch * n**2, "bytes": 3 * matrix}]


def main():
    parser = cli.lesson_parser(__doc__, "uv run 01_matmul_add.py --size 64", {"size": 64}, warm=False)
    parser.add_argument("--batched", action="store_true", help="size x size x size tensors, so that matmul is a bmm")
    settings, args = cli.parse(parser, __file__)
    n = args.size
    if args.batched:
        settings = dataclasses.replace(settings, sizes={"batch": n, "rows": n, "columns": n})
    dims = tuple(settings.sizes.values()) if args.batched else (n, n)

    def build(device, dtype):
        # Made on the CPU and copied, so that even the random numbers launch no kernel.
        x, w, b = (torch.randn(dims).to(device, dtype) for _ in range(3))
        run = torch.compile(fn, mode=settings.mode) if settings.mode else fn
        return Workload(
            name="matmul_add",
            forward=lambda: run(x, w, b),
            eager=lambda: fn(x, w, b),
            wider=lambda wide: fn(x.to(wide), w.to(wide), b.to(wide)),
            work=stated_work(dims[0] if args.batched else 1, n, dtype.itemsize, bool(settings.mode)),
        )

    lesson.run(settings, 5 * n ** len(dims), build)


if __name__ == "__main__":
    main()
