"""The second act of rung 5, for Hopper: the same MLP in Gluon, where one says which warps do what, and when.

    uv run 05_fused_mlp.py --kernel gluon

In the Triton kernel the tensor cores wait while a tile's GeGLU is computed. Here they do not: the threads keep the tile
that is done, and compute its GeGLU in pieces, each while the tensor cores are busy with a step of the next tile. The
percentages are what bench/tricks.py found on one NVIDIA H200 by leaving a trick out, at 8192 rows, 768 x 3072, bf16.

Gluon is the level below Triton, in the same package: layouts, barriers and copies are written out. One block of
threads runs on each multiprocessor; its warps come in groups of four, and a group of four is what multiplies.
"""

from common import tuned

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda.gdc import gdc_launch_dependents, gdc_wait
from triton.testing import do_bench_cudagraph

LAYOUT = gl.NVMMASharedLayout(128, 16, 2)  # any that is valid: _shaped sets the one of the configuration
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # its name in Triton 3.6
store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


def _finish(unpack, pack):
    """Assembly for two elements: gate and up come packed in 32 bits each, the two results leave packed in 32.

    tanh.approx counts although it is hidden (an exponential and a division take 3 % longer): the clock is lower the
    more a multiprocessor has to do.
    """
    one = """
        mul.f32 t, g, g;                    // gelu(g) = g / 2 (1 + tanh(g (0.79788 + 0.035677 g g)))
        fma.rn.f32 t, t, 0f3D122279, 0f3F4C422A;
        mul.f32 t, t, g;
        tanh.approx.f32 t, t;
        mul.f32 u, u, g;
        mul.f32 u, u, 0f3F000000;
        fma.rn.f32 {to}, u, t, u;
    """
    both = "".join(unpack.format(source=source) + one.format(to=to) for source, to in (("$1", "a"), ("$2", "b")))
    return gl.constexpr(f"{{ .reg .f32 g, u, t, a, b; .reg .b16 h, l; {both} {pack} $0, b, a; }}")


PACK_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $1, $2;")
PACK_FP16 = gl.constexpr("cvt.rn.f16x2.f32 $0, $1, $2;")
FINISH_BF16 = _finish("and.b32 g, {source}, 0xffff0000; shl.b32 u, {source}, 16;", "cvt.rn.bf16x2.f32")
FINISH_FP16 = _finish("mov.b32 {{l, h}}, {source}; cvt.f32.f16 g, h; cvt.f32.f16 u, l;", "cvt.rn.f16x2.f32")


def _configs(names, *values):
    return [triton.Config(dict(zip(names, row, strict=True)), num_warps=4) for row in values]


def _shaped(**blocks):
    """Descriptors learn the block shape of the configuration. (A pre_hook would keep the tuning from the disk.)"""
    for descriptor, rows, columns in blocks.values():
        descriptor.block_shape = [rows, columns]
        descriptor.layout = gl.NVMMASharedLayout(min(2 * columns, 128), 16, 2)
    return True


@gluon.jit
def place(tile, tiles_m, tiles_n):
    """Row and column of a tile: 8 rows of tiles at a time, for their inputs in the L2 cache."""
    first = tile // (8 * tiles_n) * 8
    rows = gl.minimum(tiles_m - first, 8)
    return first + tile % (8 * tiles_n) % rows, tile % (8 * tiles_n) // rows


@gluon.jit
def pieces(x, N: gl.constexpr):
    """N groups of columns of x. Which registers, not where they are: no data moves."""
    if N == 1:
        return (x,)
    else:
        left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()
        return pieces(left, N // 2) + pieces(right, N // 2)


@gluon.jit
def joined(parts, N: gl.constexpr):
    """The opposite of pieces."""
    if N == 1:
        return parts[0]
    else:
        both = gl.join(joined(parts[: N // 2], N // 2), joined(parts[N // 2 :], N // 2)).permute(0, 2, 1)
        return both.reshape([both.shape[0], 2 * both.shape[2]])


@gluon.jit
def pack(both, dtype: gl.constexpr):
    """gate and up, each rounded to 16 bits, side by side in 32: half the registers, for they wait a whole tile.

    In the dtype of the output, so fp16 overflows above 65504, as eager's gate and up do.
    """
    gate, up = pieces(both, 2)
    text: gl.constexpr = PACK_BF16 if dtype == gl.bfloat16 else PACK_FP16
    return gl.inline_asm_elementwise(text, "=r,f,f", [gate, up], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def finish(waiting, dtype: gl.constexpr):
    """The GeGLU of a piece."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(FINISH_BF16, "=r,r,r", [waiting], gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise(FINISH_FP16, "=r,r,r", [waiting], gl.float16, is_pure=True, pack=2)


@gluon.jit
def ring(STAGES: gl.constexpr, USERS: gl.constexpr):
    """Barriers for a ring of buffers: `ready` when its bytes have arrived, `free` when all users are done with it."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=USERS)
    fence_async_shared()
    return ready, free


@gluon.jit
def up_load(x, w, xs, ws, ready, free, tiles_m, tiles_n, H, steps):
    """One warp, which only asks the copy engine for the next step's inputs, as far ahead as there are buffers."""
    STAGES: gl.constexpr = xs.shape[0]
    BM: gl.constexpr = xs.shape[1]
    BN: gl.constexpr = ws.shape[1] // 2
    BK: gl.constexpr = xs.shape[2]
    i = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = place(tile, tiles_m, tiles_n)
        for k in range(steps):
            s = i % STAGES
            mbarrier.wait(free.index(s), (i // STAGES & 1) ^ 1)
            mbarrier.expect(ready.index(s), (BM + 2 * BN) * BK * 2)
            load(x, [m * BM, k * BK], ready.index(s), xs.index(s))
            load(w, [n * BN, k * BK], ready.index(s), ws.index(s).slice(0, BN))  # gate's, then up's
            load(w, [H + n * BN, k * BK], ready.index(s), ws.index(s).slice(BN, BN))
            i += 1


@gluon.jit
def up_multiply(out, xs, ws, ready, free, outs, tiles_m, tiles_n, steps, HALF: gl.constexpr):
    """Four warps: 64 of a tile's 128 rows. The GeGLU of the tile before is computed under the first products.

    At once, before the next tile, it takes 7 % longer; in 2 pieces instead of 8, 5 %.
    """
    STAGES: gl.constexpr = xs.shape[0]
    BM: gl.constexpr = xs.shape[1]
    BN: gl.constexpr = ws.shape[1] // 2
    PIECES: gl.constexpr = BN // 16
    staged = outs.index(HALF)
    both = gl.zeros([64, 2 * BN], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * BN, 16]))
    waiting, row, column = pack(both, out.dtype), tiles_m * BM, 0  # outside: before the first tile nothing is stored
    i = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        parts = pieces(waiting, PIECES)
        done = ()
        for p in gl.static_range(PIECES):
            mbarrier.wait(ready.index(i % STAGES), i // STAGES & 1)
            a, b = xs.index(i % STAGES).slice(64 * HALF, 64), ws.index(i % STAGES).permute((1, 0))
            both = warpgroup_mma(a, b, both, use_acc=p > 0, is_async=True)
            done = done + (finish(parts[p], out.dtype),)
            if p > 0:
                both = warpgroup_mma_wait(1, deps=(both,))
                mbarrier.arrive(free.index((i - 1) % STAGES))
            i += 1
        tma.store_wait(0)
        staged.store(joined(done, PIECES))
        fence_async_shared()
        store(out, [row, column], staged)
        for _ in range(PIECES, steps):
            mbarrier.wait(ready.index(i % STAGES), i // STAGES & 1)
            a, b = xs.index(i % STAGES).slice(64 * HALF, 64), ws.index(i % STAGES).permute((1, 0))
            both = warpgroup_mma(a, b, both, is_async=True)
            both = warpgroup_mma_wait(1, deps=(both,))  # the product before this one: its buffers are free
            mbarrier.arrive(free.index((i - 1) % STAGES))
            i += 1
        both = warpgroup_mma_wait(0, deps=(both,))
        mbarrier.arrive(free.index((i - 1) % STAGES))
        m, n = place(tile, tiles_m, tiles_n)
        waiting, row, column = pack(both, out.dtype), m * BM + 64 * HALF, n * BN
    tma.store_wait(0)
    staged.store(finish(waiting, out.dtype))
    fence_async_shared()
    store(out, [row, column], staged)
    tma.store_wait(0)


def _up_blocks(args):
    return _shaped(x=(args["x"], 128, 64), w=(args["w"], args["BN"], 64), out=(args["out"], 64, args["BN"]))


# BN columns of gate, and as many of up: fewer leave more tiles, which is what few rows need. 3 stages take 3 % longer.
@triton.autotune(
    _configs(("BN", "STAGES"), (128, 4), (64, 6), (32, 8)),
    key=["M", "H", "D"],
    do_bench=do_bench_cudagraph,
    cache_results=True,
)
@triton.heuristics({"SHAPED": _up_blocks})
@gluon.jit
def geglu_gemm_gluon(x, w, out, M, H, D, BN: gl.constexpr, STAGES: gl.constexpr, SHAPED: gl.constexpr):
    """gelu(x @ gate.T) * (x @ up.T): [M, D] and [2 H, D], gate's rows and then up's, to [M, H]."""
    BM: gl.constexpr = x.block_shape[0]
    BK: gl.constexpr = x.block_shape[1]
    xs = gl.allocate_shared_memory(x.dtype, [STAGES, BM, BK], x.layout)
    ws = gl.allocate_shared_memory(x.dtype, [STAGES, 2 * BN, BK], w.layout)
    outs = gl.allocate_shared_memory(x.dtype, [2, 64, BN], out.layout)
    ready, free = ring(STAGES, 2)
    gdc_launch_dependents()  # the next kernel may be put in place as soon as a multiprocessor has room
    tiles_m, tiles_n = gl.cdiv(M, BM), gl.cdiv(H, BN)
    steps = gl.maximum(gl.cdiv(D, BK), BN // 16)  # what is past D is loaded as 0
    gl.warp_specialize(
        [
            (up_multiply, (out, xs, ws, ready, free, outs, tiles_m, tiles_n, steps, gl.constexpr(0))),
            (up_multiply, (out, xs, ws, ready, free, outs, tiles_m, tiles_n, steps, gl.constexpr(1))),
            (up_load, (x, w, xs, ws, ready, free, tiles_m, tiles_n, H, steps)),
        ],
        [4, 1],
        [232, 40],  # registers a thread: 128 for the product, 64 for what waits
    )


@gluon.jit
def down_multiply(h, w, y, hs, ws, ready, free, outs, M, N, K, GROUPS: gl.constexpr, WHICH: gl.constexpr):
    """Four warps: 64 of a tile's rows. The first four also ask for the inputs, as a warp more would cost registers."""
    STAGES: gl.constexpr = ws.shape[0]
    BN: gl.constexpr = ws.shape[1]
    BK: gl.constexpr = ws.shape[2]
    PARTS: gl.constexpr = BN // y.block_shape[1]
    BYTES: gl.constexpr = (64 * GROUPS + BN) * BK * 2
    tiles_m, tiles_n = gl.cdiv(M, 64 * GROUPS), gl.cdiv(N, BN)
    steps = gl.maximum(gl.cdiv(K, BK), STAGES)
    acc = gl.zeros([64, BN], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16]))
    next_tile, next_k = gl.program_id(0), STAGES - 1  # of the step to ask for
    next_m, next_n = place(next_tile, tiles_m, tiles_n)
    if WHICH == 0:
        gdc_wait()  # until the kernel before is done, and what it wrote can be read
        for q in gl.static_range(STAGES - 1):
            mbarrier.expect(ready.index(q), BYTES)
            for j in gl.static_range(GROUPS):
                load(h, [(next_m * GROUPS + j) * 64, q * BK], ready.index(q), hs.index(q * GROUPS + j))
            load(w, [next_n * BN, q * BK], ready.index(q), ws.index(q))
    i = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        for k in range(steps):
            s = i % STAGES
            mbarrier.wait(ready.index(s), i // STAGES & 1)
            acc = warpgroup_mma(
                hs.index(s * GROUPS + WHICH), ws.index(s).permute((1, 0)), acc, use_acc=k > 0, is_async=True
            )
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(free.index((i + STAGES - 1) % STAGES), pred=k > 0)
            if WHICH == 0:
                if next_k == steps:
                    next_tile, next_k = next_tile + gl.num_programs(0), 0
                    next_m, next_n = place(next_tile, tiles_m, tiles_n)
                if next_tile < tiles_m * tiles_n:
                    r = (i + STAGES - 1) % STAGES
                    mbarrier.wait(free.index(r), ((i + STAGES - 1) // STAGES & 1) ^ 1)
                    mbarrier.expect(ready.index(r), BYTES)
                    for j in gl.static_range(GROUPS):
                        load(h, [(next_m * GROUPS + j) * 64, next_k * BK], ready.index(r), hs.index(r * GROUPS + j))
                    load(w, [next_n * BN, next_k * BK], ready.index(r), ws.index(r))
                next_k += 1
            i += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index((i - 1) % STAGES))
        m, n = place(tile, tiles_m, tiles_n)
        parts = pieces(acc, PARTS)
        for p in gl.static_range(PARTS):  # through two small buffers in turn
            tma.store_wait(1)
            staged = outs.index(2 * WHICH + p % 2)
            staged.store(parts[p].to(y.dtype))
            fence_async_shared()
            store(y, [(m * GROUPS + WHICH) * 64, n * BN + p * (BN // PARTS)], staged)
    tma.store_wait(0)


def _down_blocks(args):
    return _shaped(h=(args["h"], 64, 64), w=(args["w"], args["BN"], 64), y=(args["y"], 64, min(args["BN"], 64)))


# 3 x 64 rows and 256 columns cut 8192 x 768 in 129 tiles: one round of the 132 multiprocessors, nearly full. With
# 2 x 64 and 128 the whole MLP takes 2 % longer, with cuBLAS in this kernel's place as well.
@triton.autotune(
    _configs(("GROUPS", "BN", "STAGES"), (3, 256, 3), (2, 256, 4), (2, 128, 6), (2, 32, 8)),
    key=["M", "N", "K"],
    do_bench=do_bench_cudagraph,
    cache_results=True,
)
@triton.heuristics({"SHAPED": _down_blocks})
@gluon.jit
def down_gemm_gluon(
    h, w, y, M, N, K, GROUPS: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, SHAPED: gl.constexpr
):
    """h @ w.T: [M, K] and [N, K] to [M, N], by GROUPS times four warps with 64 rows of a tile each."""
    BK: gl.constexpr = h.block_shape[1]
    hs = gl.allocate_shared_memory(h.dtype, [STAGES * GROUPS, 64, BK], h.layout)
    ws = gl.allocate_shared_memory(h.dtype, [STAGES, BN, BK], w.layout)
    outs = gl.allocate_shared_memory(h.dtype, [2 * GROUPS, 64, y.block_shape[1]], y.layout)
    ready, free = ring(STAGES, GROUPS)
    if GROUPS == 3:
        gl.warp_specialize(
            [
                (down_multiply, (h, w, y, hs, ws, ready, free, outs, M, N, K, GROUPS, gl.constexpr(0))),
                (down_multiply, (h, w, y, hs, ws, ready, free, outs, M, N, K, GROUPS, gl.constexpr(1))),
                (down_multiply, (h, w, y, hs, ws, ready, free, outs, M, N, K, GROUPS, gl.constexpr(2))),
            ],
            [4, 4],
            [168, 168],
        )
    else:
        gl.warp_specialize(
            [
                (down_multiply, (h, w, y, hs, ws, ready, free, outs, M, N, K, GROUPS, gl.constexpr(0))),
                (down_multiply, (h, w, y, hs, ws, ready, free, outs, M, N, K, GROUPS, gl.constexpr(1))),
            ],
            [4],
            [232],
        )


torch.library.define("ladder::geglu_up_gluon", "(Tensor x, Tensor weight) -> Tensor")
torch.library.define("ladder::down_gluon", "(Tensor h, Tensor weight) -> Tensor")
geglu_up, down = torch.ops.ladder.geglu_up_gluon, torch.ops.ladder.down_gluon


@torch.library.impl("ladder::geglu_up_gluon", "default")
def _geglu_up(x: Tensor, weight: Tensor) -> Tensor:
    """gelu(x @ weight[0].T) * (x @ weight[1].T), as ladder::geglu_up of rung 5, forward only.

    x: [M, D] and weight: [2, H, D], gate's and up's, both bf16 or both fp16, on one Hopper GPU. Returns [M, H], whose
    gate and up were rounded to the dtype, as eager's are. Raises ValueError.
    """
    _check(x, weight[0] if weight.dim() == 3 and weight.shape[0] == 2 else weight, "weight [2, H, D]")
    M, H = x.shape[0], weight.shape[1]
    tiles = lambda config: triton.cdiv(M, 128) * triton.cdiv(H, config["BN"])  # noqa: E731
    return _launch(geglu_gemm_gluon, x, weight.contiguous().flatten(0, 1), H, tiles)


@torch.library.impl("ladder::down_gluon", "default")
def _down(h: Tensor, weight: Tensor) -> Tensor:
    """h @ weight.T for h: [M, K] and weight: [N, K], as F.linear. Returns [M, N]. Raises ValueError.

    Put in place while the kernel before it still runs, which the trace shows as overlap (0.6 % of the MLP).
    """
    _check(h, weight, "weight [N, K]")
    M, N = h.shape[0], weight.shape[0]
    tiles = lambda config: triton.cdiv(M, 64 * config["GROUPS"]) * triton.cdiv(N, config["BN"])  # noqa: E731
    return _launch(down_gemm_gluon, h, weight, N, tiles, launch_pdl=True)


def _launch(kernel, x, weight, columns, tiles, **options):
    M, K = x.shape
    if not (M and columns and K):
        return x.new_zeros(M, columns)
    out = x.new_empty(M, triton.cdiv(columns, 8) * 8)[:, :columns]
    given = [TensorDescriptor.from_tensor(t, [64, 64], LAYOUT) for t in (_rows(x), _rows(weight), out)]
    most = torch.cuda.get_device_properties(x.device).multi_processor_count
    with torch.cuda.device(x.device):
        tuned.launch(kernel, (M, columns, K, x.dtype, x.device), tiles, most, *given, M, columns, K, **options)
    return out.contiguous()


def _rows(t):
    """t, or a copy of it: the copy engine wants rows that begin at multiples of 16 bytes."""
    if t.stride(1) == 1 and t.stride(0) >= t.shape[1] and t.stride(0) % 8 == 0 and t.data_ptr() % 16 == 0:
        return t
    wide = t.new_empty(t.shape[0], triton.cdiv(t.shape[1], 8) * 8)
    return wide[:, : t.shape[1]].copy_(t)


def _check(x, weight, shape):
    if x.dim() != 2 or weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise ValueError(f"x is [M, K] and {shape}, not {list(x.shape)} and {list(weight.shape)}")
    if x.dtype not in (torch.bfloat16, torch.float16) or weight.dtype != x.dtype:
        raise ValueError(f"x and weight are both bf16 or both fp16, not {x.dtype} and {weight.dtype}")
    if not x.is_cuda or x.device != weight.device:
        raise ValueError(f"x and weight are on one GPU, not on {x.device} and {weight.device}")
    if torch.cuda.get_device_capability(x.device)[0] != 9:
        raise ValueError("this kernel is for Hopper (H100, H200), whose instructions for products it uses")


@torch.library.register_fake("ladder::geglu_up_gluon")
def _up_shape(x, weight):
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.register_fake("ladder::down_gluon")
def _down_shape(h, weight):
    return h.new_empty(h.shape[0], weight.shape[0])
