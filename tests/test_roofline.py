"""FLOPs and bytes against figures worked out by hand, on the recorded traces and on shapes that mislead."""

import json

from common import names, reading, roofline, work
from common.events import Args, Event, Trace

import msgspec
import pytest
from conftest import H200

GEMM = 38_654_705_664  # 2 x 8192 x 768 x 3072
MLP = "03_simple_mlp/64x128x768x3072_bf16_warm_"
LIGER = "04_liger_mlp/64x128x768x3072_bf16_warm_liger-package"


def rows(config: str) -> list[tuple]:
    trace = reading.read(H200 / f"{config}.json.gz")
    steps = work.per_step(trace)
    roofs = roofline.roofs(trace, steps)
    return [(row, roof) for row, roof in zip(steps.rows, roofs, strict=True)]


@pytest.mark.parametrize(
    ("config", "gpu_events"),
    [(MLP + "eager", 7), (MLP + "compile", 6), (MLP + "compile-max-autotune", 5), (LIGER, 6)],
)
def test_each_gemm_of_the_mlp_is_the_same_work_in_every_variant(config, gpu_events):
    table = rows(config)
    assert sum(row.per_step for row, _ in table) == gpu_events
    gemms = [
        (roof.flops, roof.bytes) for row, roof in table if row.family == names.GEMM for _ in range(int(row.per_step))
    ]
    assert gemms == [(GEMM, 67_633_152)] * 3
    for row, roof in table:
        assert (roof.flops is None) == (row.family in (names.MEMSET, names.COPY))


@pytest.mark.parametrize("config", [MLP + "compile", MLP + "compile-max-autotune", LIGER])
def test_the_fused_kernel_moves_three_tensors_though_its_row_lists_two(config):
    ((row, roof),) = [pair for pair in rows(config) if pair[0].family == names.ELEMENTWISE]
    assert (roof.flops, roof.bytes, roof.at_least) == (251_658_240, 150_994_944, False)
    assert roof.bound == "memory" and roof.ideal_us == pytest.approx(150_994_944 / 4.17e6, rel=0.01)


def test_eagers_gelu_and_mul():
    moved = {row.op: roof.bytes for row, roof in rows(MLP + "eager")}
    assert (moved["aten::gelu"], moved["aten::mul"]) == (100_663_296, 150_994_944)


def test_without_the_lessons_word_shapes_give_the_same_gemms_and_a_lower_bound_for_the_fused():
    trace = reading.read(H200 / f"{MLP}compile.json.gz")
    del trace.lesson["work"]
    steps = work.per_step(trace)
    roofs = dict(zip((row.family for row in steps.rows), roofline.roofs(trace, steps), strict=True))
    assert (roofs["gemm"].flops, roofs["gemm"].bytes) == (GEMM, 67_633_152)
    fused = roofs["elementwise"]
    assert (fused.flops, fused.bytes, fused.at_least) == (None, 100_663_296, True)
    assert fused.bound is None and fused.ideal_us is None


def test_large_matmuls_are_at_the_compute_limit_and_their_add_at_the_memory_limit():
    bounds = {row.op: roof.bound for row, roof in rows("01_matmul_add/4096_bf16_warm_eager") if row.family != "memset"}
    assert bounds == {"aten::mm": "compute", "aten::add": "memory"}
    ((copy, roof),) = [p for p in rows("01_matmul_add/4096_bf16_warm_compile") if p[0].family == names.COPY]
    assert copy.moved == 2 * 4096**2 and roof.bytes == 2 * copy.moved and roof.flops is None


def test_tiny_kernels_are_bound_by_latency():
    assert {roof.bound for _, roof in rows("01_matmul_add/64_bf16_warm_eager")} == {"latency"}


def one(op, dims, types=None, strides=None, concrete=None, kernel="nvjet_x", device="NVIDIA H100") -> roofline.Roof:
    """The Roof of one 100 us kernel that `op` launched."""
    types = types or ["c10::BFloat16"] * len(dims)
    strides = strides or [[]] * len(dims)
    raws = [msgspec.Raw(json.dumps(part).encode()) for part in (dims, types, strides, concrete or [])]
    trace = Trace(
        [
            Event("X", "cpu_op", op, 1, 1, 0, 50, Args(None, *raws)),
            Event("X", "cuda_runtime", "cudaLaunchKernel", 1, 1, 10, 1, Args(7)),
            Event("X", "kernel", kernel, 0, 7, 60, 100, Args(7)),
        ]
    )
    trace.devices = [{"name": device}]
    (roof,) = roofline.roofs(trace, work.per_step(trace))
    return roof


GELU, COPY = "void at::native::vectorized_elementwise_kernel<4, Gelu>", "void at::native::direct_copy_kernel_cuda"


@pytest.mark.parametrize(
    ("op", "dims", "flops", "size"),
    [
        ("aten::mm", [[2, 3], [3, 4]], 48, 2 * (6 + 12 + 8)),
        ("aten::mm", [[2, 3], [3, 4], [2, 4]], 48, 2 * (6 + 12 + 8)),  # compiled: out is listed
        ("aten::addmm", [[4], [2, 3], [3, 4], [], []], 48, 2 * (4 + 6 + 12 + 8)),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], 240, 2 * 5 * (6 + 12 + 8)),
        ("aten::baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]], 240, 2 * 5 * (8 + 6 + 12 + 8)),
        ("aten::linear", [[7, 2, 3], [4, 3]], 2 * 7 * 2 * 3 * 4, 2 * (42 + 12 + 56)),
        ("aten::cudnn_convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], None, None),
    ],
)
def test_gemms_from_shapes(op, dims, flops, size):
    roof = one(op, dims)
    assert (roof.flops, roof.bytes) == (flops, size)


@pytest.mark.parametrize(
    ("op", "dims", "types", "strides", "size"),
    [
        ("aten::gelu", [[8, 8]], ["float"], [[8, 1]], 512),
        ("aten::mul", [[8, 8], [8, 8]], None, [[8, 1], [8, 1]], 2 * 64 * 3),
        ("aten::mul", [[8, 8], [8]], None, [[8, 1], [1]], 2 * (64 + 8 + 64)),
        ("aten::mul", [[8, 8], [8, 8]], None, [[8, 1], [0, 1]], 2 * (64 + 8 + 64)),  # expanded: read once
        ("aten::add", [[8, 8], []], None, [[8, 1], []], 2 * 64 * 2),
        ("aten::gelu", [[10, 4]], None, [[1, 1]], 2 * 2 * 13),  # rows of a view that overlap
        ("aten::copy_", [[8, 8], [8, 8]], ["float", "c10::BFloat16"], None, 64 * 6),
        ("aten::fill_", [[8, 8], []], None, None, 128),
    ],
)
def test_bytes_from_shapes_types_and_strides(op, dims, types, strides, size):
    roof = one(op, dims, types, strides, kernel=COPY if op == "aten::copy_" else GELU)
    assert (roof.flops, roof.bytes, roof.at_least) == (None, size, False)


def test_what_shapes_cannot_tell_is_blank_or_at_least():
    assert one("aten::sum", [[8, 8]], kernel="void at::native::reduce_kernel<512, 1>").at_least
    assert one("aten::index_select", [[30522, 512], [7]], kernel="void at::native::indexSelect<>").bytes is None
    assert one("mine::op", [[8, 8]], ["Unheard"], kernel="k").bytes is None
    assert one("aten::mm", [["?"], [3]]).flops is None
    unknown = one("aten::mm", [[2, 3], [3, 4]], device="Somebody's GPU")
    assert unknown.flops == 48 and unknown.of_ideal is None and unknown.bound is None


@pytest.mark.parametrize(("causal", "part"), [("False", 1), ("True", 2)])
def test_attention_counts_half_the_square_where_it_is_causal(causal, part):
    q = [2, 128, 4, 64]  # flash: batch, sequence, heads, head size
    concrete = [""] * 5 + ["128", "128", "0.", causal, "False"]
    roof = one(
        "aten::_flash_attention_forward", [q, q, q], concrete=concrete, kernel="pytorch_flash::flash_fwd_kernel<>(x)"
    )
    assert roof.flops == 4 * 2 * 4 * 128 * 128 * 64 // part and bool(roof.note) == (causal == "True")
    assert roof.bytes == 2 * 4 * 2 * 128 * 4 * 64
    silent = one("aten::_flash_attention_forward", [q, q, q], kernel="pytorch_flash::flash_fwd_kernel<>(x)")
    assert silent.flops is None and silent.at_least


@pytest.mark.parametrize(
    ("device", "tflops", "gbps"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA A100-SXM4-40GB", 312, 1555),
        ("NVIDIA H100 PCIe", 756, 2000),
        ("NVIDIA H100 80GB HBM3", 989, 3350),
        ("NVIDIA H200", 989, 4800),
        ("Tesla T4", 65, 320),
        ("NVIDIA L40", None, None),
        ("NVIDIA GeForce RTX 4090", None, None),
    ],
)
def test_datasheet_peaks(device, tflops, gbps):
    trace = Trace()
    trace.devices = [{"name": device}]
    limits = roofline.peaks(trace)
    assert (limits.half, limits.gbps) == (tflops, gbps)
    assert ("unknown" in limits.source) == (tflops is None)


def test_the_steps_bound_and_why():
    def bound(config: str) -> str:
        trace = reading.read(H200 / f"{config}.json.gz")
        steps = work.per_step(trace)
        return str(roofline.step_bound(trace, steps, roofline.roofs(trace, steps)))

    assert bound("01_matmul_add/64_bf16_warm_eager").startswith("launch-bound: the GPU works for ")
    assert bound(MLP + "eager").startswith("compute-bound: ")
