"""Rung 5: a kernel of our own. The fused kernel of rungs 3 and 4 is at the memory limit already; what is left?

Guess before you run it, and write the guess down:
- gate and up are written by two GEMMs only for the next kernel to read them. How many kernels if they never exist?
- 151 MB went through memory for the GeGLU alone. How many are left?
- The GELU runs inside of the GEMM now, where the tensor cores wait for it. Is it free, or better than free?

    uv run 05_fused_mlp.py --batch 64 --seq 128 --dim 768 --hidden 3072
    uv run 05_fused_mlp.py --kernel gluon        # the second act, in fused_gluon.py, for Hopper (H100, H200)

Look at: how many kernels a step has, what they move, and the time of the first beside that of the two GEMMs and the
GeGLU of rungs 3 and 4, set against each other at the end. bench/NOTES.md is the story of the kernels, bench/mlp.py
measures them beside everybody else's, and bench/tricks.py what each trick buys: the percentages in the comments.
The kernels are Triton: they need a GPU. Without one, the recorded trace is shown.
"""

import copy

from common import cli, device, lesson, tuned
from common.session import Workload

import torch
import torch.nn.functional as F
from torch import nn

try:
    import triton
    import triton.language as tl
    from triton.testing import do_bench_cudagraph
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # not on macOS, nor on Windows
    triton = None
INTERPRETED = triton is not None and triton.knobs.runtime.interpret  # TRITON_INTERPRET=1: on a CPU, for the tests


if triton is not None:

    @triton.jit
    def geglu(gate, up, FAST: tl.constexpr):
        """gelu(gate) * up with the tanh form of GELU, in fp32."""
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        if FAST:  # one instruction; an exponential and a division take 7 % longer, for the tensor cores wait meanwhile
            tanh = tl.inline_asm_elementwise(
                "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            tanh = 1 - 2 / (tl.exp(2 * inner) + 1)
        return 0.5 * gate * (1 + tanh) * up

    @triton.jit
    def place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
        """Row and column of a tile: GROUP rows of tiles at a time, for their inputs in the L2 cache (1 %)."""
        first = tile // (GROUP * tiles_n) * GROUP
        rows = tl.minimum(tiles_m - first, GROUP)
        return first + tile % (GROUP * tiles_n) % rows, tile % (GROUP * tiles_n) // rows

    def _blocks(args):
        """Descriptors learn the block shape of the configuration. (A pre_hook would keep the tuning from the disk.)"""
        args["x"].block_shape = [args["BM"], args["BK"]]
        args["w"].block_shape = [2, args["BN"], args["BK"]]
        args["out"].block_shape = [args["BM"], args["BN"]]
        return True

    def _configs(*rows):
        keys = ("BM", "BN", "BK", "GROUP")
        return [triton.Config(dict(zip(keys, r, strict=False)), num_stages=r[4], num_warps=r[5]) for r in rows]

    # Hopper and newer. The copy engine moves whole tiles by descriptor, and cuts off what is outside. One program on a
    # multiprocessor walks over the tiles (a program for each takes 14 % longer): while it finishes one, the loads of
    # the next are under way, which flatten=True asks for (10 % longer without).
    @triton.autotune(
        _configs(
            # BM, BN, BK, GROUP, stages, warps
            (128, 128, 64, 8, 4, 8),
            (128, 128, 64, 8, 3, 8),
            (128, 64, 64, 8, 5, 4),
            (128, 64, 64, 8, 4, 8),
            (64, 128, 64, 8, 4, 8),
            (64, 64, 64, 8, 5, 4),
            (64, 32, 128, 8, 5, 4),
        ),
        key=["M", "H", "D"],
        do_bench=do_bench_cudagraph,  # short kernels would be measured by the CPU that launches them
        cache_results=True,
    )
    @triton.heuristics({"SHAPED": _blocks})
    @triton.jit
    def geglu_gemm_tma(
        x, w, out, M, H, D, FAST: tl.constexpr, SHAPED: tl.constexpr,
        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    ):  # fmt: skip
        tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(H, BN)
        for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
            m, n = place(tile, tiles_m, tiles_n, GROUP)
            both = tl.zeros((BM, 2 * BN), tl.float32)  # gate's columns, then up's: two products take 35 % longer
            for k in range(tl.cdiv(D, BK)):
                a = x.load([m * BM, k * BK])
                b = w.load([0, n * BN, k * BK]).reshape(2 * BN, BK)
                both = tl.dot(a, b.T, both)
            gate, up = both.reshape(BM, 2, BN).permute(0, 2, 1).split()  # in the same threads: no data moves
            out.store([m * BM, n * BN], geglu(gate, up, FAST).to(out.dtype))

    # Older GPUs, and sizes whose rows do not begin at multiples of 16 bytes: plain pointers, with masks.
    @triton.autotune(
        _configs((128, 64, 32, 8, 4, 8), (64, 64, 32, 8, 4, 4), (32, 32, 64, 8, 4, 4)),
        key=["M", "H", "D"],
        do_bench=do_bench_cudagraph,
        cache_results=True,
    )
    @triton.jit
    def geglu_gemm_pointers(
        x, w, out, M, H, D, stride, second, FAST: tl.constexpr,
        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    ):  # fmt: skip
        m, n = place(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(H, BN), GROUP)
        rows = m.to(tl.int64) * BM + tl.arange(0, BM)  # 64 bits: a large x has more elements than 32 can count
        columns = n.to(tl.int64) * BN + tl.arange(0, BN)
        gate, up = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
        for k in range(0, D, BK):
            inner = k + tl.arange(0, BK)
            a = tl.load(x + rows[:, None] * stride + inner, mask=(rows[:, None] < M) & (inner < D), other=0.0)
            there = (columns < H) & (inner[:, None] < D)
            b = w + columns * D + inner[:, None]
            gate = tl.dot(a, tl.load(b, mask=there, other=0.0), gate)
            up = tl.dot(a, tl.load(b + second, mask=there, other=0.0), up)
        value = geglu(gate, up, FAST).to(out.dtype.element_ty)
        tl.store(out + rows[:, None] * H + columns, value, mask=(rows[:, None] < M) & (columns < H))


# A bare launch leaves no op in the trace. As an op it has a row with its shapes, and torch.compile can hold it.
# (torch.library.custom_op does the same in one line, for more of the CPU's time at every call.)
torch.library.define("ladder::geglu_up", "(Tensor x, Tensor weight) -> Tensor")
geglu_up = torch.ops.ladder.geglu_up


@torch.library.impl("ladder::geglu_up", "default")
def _geglu_up(x, weight):
    """gelu(x @ weight[0].T) * (x @ weight[1].T) in one kernel, forward only.

    x: [M, D] and weight: [2, H, D], gate's and up's, both bf16 or both fp16, on one GPU. Returns [M, H]. Raises
    ValueError.
    """
    kinds = (torch.float32,) if INTERPRETED else (torch.bfloat16, torch.float16)
    if x.dim() != 2 or weight.dim() != 3 or weight.shape[0] != 2 or weight.shape[2] != x.shape[1]:
        raise ValueError(f"x is [M, D] and weight [2, H, D], not {list(x.shape)} and {list(weight.shape)}")
    if x.dtype not in kinds or weight.dtype != x.dtype:
        raise ValueError(f"x and weight are both bf16 or both fp16, not {x.dtype} and {weight.dtype}")
    if triton is None or x.device != weight.device or x.is_cuda == INTERPRETED:
        raise ValueError(f"x and weight are on one GPU, not on {x.device} and {weight.device}")
    (M, D), H = x.shape, weight.shape[1]
    x, weight = x if x.stride(1) == 1 else x.contiguous(), weight.contiguous()
    out = x.new_empty(M, H)
    if not out.numel():
        return out
    if INTERPRETED:  # where there is nothing to tune on
        grid = (triton.cdiv(M, 32) * triton.cdiv(H, 32),)
        geglu_gemm_pointers.fn[grid](x, weight, out, M, H, D, x.stride(0), H * D, False, BM=32, BN=32, BK=32, GROUP=8)
        return out
    sizes = (M, H, D, x.dtype, x.device)
    tiles = lambda config: triton.cdiv(M, config["BM"]) * triton.cdiv(H, config["BN"])  # noqa: E731
    with torch.cuda.device(x.device):
        if _descriptors(x, weight, out):
            most = torch.cuda.get_device_properties(x.device).multi_processor_count
            block = [1, 128 // (8 * x.itemsize)]  # any that is valid: _blocks sets the one of the configuration
            tensors = [TensorDescriptor.from_tensor(t, [1] * (t.dim() - 2) + block) for t in (x, weight, out)]
            tuned.launch(geglu_gemm_tma, sizes, tiles, most, *tensors, M, H, D, FAST=True)
        else:
            key = (*sizes, x.stride(0), *(t.data_ptr() % 16 for t in (x, weight, out)))
            args = (x, weight, out, M, H, D, x.stride(0), H * D)
            tuned.launch(geglu_gemm_pointers, key, tiles, None, *args, FAST=True)
    return out


@torch.library.register_fake("ladder::geglu_up")
def _shape(x, weight):
    return x.new_empty(x.shape[0], weight.shape[1])


def _descriptors(*tensors):
    """The copy engine came with Hopper, and wants rows that begin at multiples of 16 bytes."""
    aligned = all(t.data_ptr() % 16 == 0 and t.stride(-2) * t.itemsize % 16 == 0 for t in tensors)
    aligned = aligned and tensors[0].stride(0) >= tensors[0].shape[1]  # not one row, expanded
    return torch.cuda.get_device_capability(tensors[0].device)[0] >= 9 and aligned


class SimpleGeGLUMLP(nn.Module):  # rung 3's, for the weights and for the check
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class FusedGeGLUMLP(nn.Module):
    def __init__(self, mlp, kernel="triton"):
        super().__init__()
        self.up = nn.Parameter(torch.stack([mlp.gate_proj.weight, mlp.up_proj.weight]))  # [2, hidden, dim]
        self.down_proj = mlp.down_proj
        self.geglu_up, self.down = geglu_up, F.linear
        if kernel == "gluon":
            import fused_gluon

            self.geglu_up, self.down = fused_gluon.geglu_up, fused_gluon.down

    def forward(self, x):
        if torch.is_grad_enabled() and (x.requires_grad or self.up.requires_grad):
            raise RuntimeError("this MLP is forward only: call it under torch.no_grad()")
        h = self.geglu_up(x.reshape(-1, x.shape[-1]), self.up)  # 4 M N K FLOP; reads x and both weights, writes h alone
        return self.down(h, self.down_proj.weight).reshape(x.shape)  # 2 M N K FLOP


def stated_work(rows, dim, hidden, itemsize):
    up = {"flops": 4 * rows * dim * hidden, "bytes": itemsize * (rows * dim + 2 * dim * hidden + rows * hidden)}
    down = {"flops": 2 * rows * dim * hidden, "bytes": itemsize * (rows * hidden + dim * hidden + rows * dim)}
    return [{"role": "gate, up and GeGLU", "family": "gemm", **up}, {"role": "down", "family": "gemm", **down}]


def needed(sizes, itemsize):
    """Bytes that any MLP of these sizes moves: x, the weights and y, each once. What is more is for intermediates."""
    rows, dim, hidden = sizes["batch"] * sizes["seq"], sizes["dim"], sizes["hidden"]
    return itemsize * (2 * rows * dim + 3 * dim * hidden)


def main():
    sizes = {"batch": 64, "seq": 128, "dim": 768, "hidden": 3072}
    example = "uv run 05_fused_mlp.py --batch 64 --seq 128 --dim 768 --hidden 3072"
    parser = cli.lesson_parser(__doc__, example, sizes, warm=True, variant="triton")
    parser.add_argument("--kernel", dest="variant", choices=("triton", "gluon"), help="default triton")
    settings, args = cli.parse(parser, __file__)
    rows, dim, hidden = args.batch * args.seq, args.dim, args.hidden

    def build(on, dtype):
        if triton is None or on == "cpu" and not INTERPRETED:
            raise lesson.NotHere("our kernels are Triton, which needs a GPU.")
        if on == "cuda" and dtype == torch.float32:
            raise device.CannotRun("our kernels are for the tensor cores' dtypes; use --dtype bf16 or fp16")
        if args.variant == "gluon" and (on == "cpu" or torch.cuda.get_device_capability()[0] != 9):
            refuse = device.CannotRun if settings.device == "cuda" else lesson.NotHere
            raise refuse("the kernels in Gluon are for Hopper, H100 and H200; --kernel triton runs on others.")
        if on == "cuda":
            device.check_compiler(on, "Triton")
        mlp = SimpleGeGLUMLP(dim, hidden).to(on, dtype)
        fused = FusedGeGLUMLP(mlp, args.variant)
        x = torch.randn(args.batch, args.seq, dim).to(on, dtype)
        return Workload(
            name="mlp_fwd",
            forward=lambda: fused(x),
            eager=lambda: mlp(x),
            wider=lambda wide: copy.deepcopy(mlp).to(wide)(x.to(wide)),
            work=stated_work(rows, dim, hidden, dtype.itemsize),
        )

    other = "triton" if args.variant == "gluon" else "gluon"
    before = (("03_simple_mlp", "eager"), ("03_simple_mlp", "compile"), ("04_liger_mlp", "liger", "liger-package"))
    beside = lesson.Beside((*before, ("05_fused_mlp", other)), needed)
    lesson.run(settings, rows * (2 * dim + 4 * hidden) + 8 * dim * hidden, build, beside)


if __name__ == "__main__":
    main()
