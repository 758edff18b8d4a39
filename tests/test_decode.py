"""The parts of kernel names: the articles', those recorded on an H200, and other people's."""

import json
import random
import re
import string
from collections import Counter
from pathlib import Path

from common import decode, reading, work
from common.events import GPU

import pytest
from conftest import H200, ROOT, run

SITUATIONS = ROOT / "tests" / "traces" / "h200"
FOREIGN = ROOT.parent / "shared" / "foreign-traces"
ARTICLES = {
    # name: what some of its parts say (in order), of the names that the three articles print
    "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align8": {
        "architecture": "written for compute capability 8.0, Ampere (A100)",
        "unit": "tensor cores, through the WMMA interface",
        "dtype out": "bf16",
        "instruction": "16x16x16 tensor-core instruction, fp32 accumulation",
        "dtype in": "bf16",
        "tile": "a thread block computes 32 x 32 of the output, 32 deep; pipeline stages: 1",
        "layout": "A row-major, B column-major; called through cuBLAS, of mm(a, b): a is row-major, b is transposed (as weight.t() is)",
        "alignment": "rows begin at multiples of 8 elements",
    },
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn": {
        "instruction": "16x8x16 tensor-core instruction, fp32 accumulation",
        "tile": "a thread block computes 128 x 256 of the output",
        "stages": "64 of the inner dimension at a time; pipeline stages: 3",
        "layout": "of mm(a, b): a is row-major, b is row-major",
    },
    "ampere_sgemm_128x64_tn": {"instruction": "fp32 accumulation, without tensor cores"},
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": {
        "computes": "fused attention, forward",
        "accumulator": "the output in registers",
        "tile": "64 queries by 64 keys a thread block",
    },
    "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_6_128x64x64_4x1x1_cga1x1x1_kernel0_0": {
        "tile": "128 queries by 64 keys, heads of 64",
        "cluster": "1 x 1 x 1 thread blocks",
    },
    "triton_poi_fused__unsafe_view_gelu_mul_0": {
        "computes": "a pointwise kernel, generated",
        "came from": "the ops it was generated from, sorted by name, which is not what it runs: _unsafe_view_gelu_mul",
    },
}
OTHERS = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": {
        "dtype": "bf16 in, fp32 accumulation, bf16 out",
        "cluster": "1 x 2 thread blocks share their loads",
        "epilogue": "beta is zero: the output is written and not read",
    },
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": {"stages": "64 of the inner dimension at a time; pipeline stages: 16"},
    "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn": {"architecture": "written for Volta"},
    "turing_h1688gemm_128x128_ldg8_tn": {"instruction": "16x8x8 tensor-core instruction, fp16 accumulation"},
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas": {
        "unit": "fused multiply-adds on the ordinary cores, without tensor cores"
    },
    "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas": {
        "dtype": "fp32 in, multiplied as tf32, fp32 accumulation, fp32 out; alpha and beta are fp32"
    },
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8_warpspecialized_pingpong_epi_tma": {
        "cluster": "2 x 1 thread blocks share their loads",
        "schedule": "warps that load and warps that compute, pingpong",
    },
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::"
    "collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, cute::tuple<cute::C<2>, cute::C<1>, "
    "cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedPingpong>, cute::tuple<cute::C<128>, cute::C<64>, cute::C<32> >, "
    "cutlass::bfloat16_t, cute::tuple<long, cute::C<1>, long> > > >(Params)": {
        "cluster": "2 x 1 thread blocks share their loads",
        "tile": "a thread block computes 128 x 64 of the output, 32 deep",
        "dtype": "bf16",
    },
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": {
        "computes": "AllReduce", "dtype": "bf16", "entry point": "one kernel stands for several: this does not tell which algorithm and protocol ran",
    },
    "Memcpy DtoH (Device -> Pinned)": {"computes": "copies from device to pinned memory"},
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, true> > > >(Params)": {
        "tile": "128 queries by 176 keys a thread block, heads of 128", "stages": "pipeline stages: 2", "dtype": "bf16",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", [*ARTICLES, *OTHERS], ids=lambda name: name[:40])
def test_a_name_is_explained_to_its_last_part(name):
    found = decode.decode(name)
    assert found.whole and not found.rest
    for field, says in (ARTICLES | OTHERS)[name].items():
        assert says in [part.says for part in found.parts if part.field == field]


def test_what_is_not_documented_is_called_inferred():
    documented = {part.text: bool(part.source) for part in decode.decode(next(iter(ARTICLES))).parts}
    assert documented["tn"] and documented["32x32_32x1"]
    jet = {part.text: bool(part.source) for part in decode.decode("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_TNT").parts}
    assert jet["sm90"] and not jet["tst"] and not jet["TNT"]


@pytest.mark.parametrize(
    ("name", "computes", "dtype", "loop"),
    [
        ("GeluCUDAKernelImpl", "gelu", "bf16", "each thread handles 8 adjacent elements at once"),
        ("MulFunctor", "mul", "bf16", "each thread handles 8 adjacent elements at once"),
        ("silu_kernel", "silu", "fp32", "each thread handles 4 adjacent elements at once"),
        ("masked_fill_kernel", "masked fill", "bf16", "elements one by one: strides or broadcasting rule out vectors"),
        ("MeanOps", "mean", "fp32", "at most 512 threads a block; outputs a thread: 1"),
        ("MaxNanFunctor", "maxnan", "bf16", "at most 128 threads a block; outputs a thread: 4"),
    ],
)
def test_a_template_tells_what_it_applies_to_what(name, computes, dtype, loop):
    every = [
        n for trace in ("attention_inplace", "pointwise", "reductions") for n in _names(SITUATIONS / f"{trace}.json.gz")
    ]
    parts = {part.field: part.says for part in decode.decode(next(n for n in every if name in n)).parts}
    assert (parts["computes"], parts["dtype"], parts["loop"]) == (computes, dtype, loop)


def test_layout_and_dtype_are_those_recorded_beside_the_name():
    """The inference behind `TNT` and `tst`: each GEMM of this trace has its operands' strides and dtypes beside it."""
    trace = reading.read(SITUATIONS / "gemms.json.gz")
    seen = Counter()
    for row in work.per_step(trace).rows:
        found = {part.field: part for part in decode.decode(row.name).parts}
        if row.op != "aten::mm" or "layout" not in found or min(row.dims[0] + row.dims[1]) == 1:
            continue
        words = ["row-major" if strides[1] == 1 else "transposed" for _, _, strides in row.inputs[:2]]
        assert re.findall("row-major|transposed", found["layout"].says) == words, row.name
        kind = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64"}[row.inputs[0][1]]
        said = found["dtype"].says if "dtype" in found else found["instruction"].says
        assert kind in said, row.name
        seen[kind, *words] += 1
    assert len(seen) == 13  # four layouts of three dtypes, and fp64


def test_nvjets_stages_fit_the_shared_memory_beside_them():
    """The inference behind `256x128_64x4`: (256 + 128) x 64 x 4 elements are most of the kernel's shared memory."""
    seen = 0
    for event in reading.read(SITUATIONS / "gemms.json.gz").of(GPU):
        shape = re.match(r"nvjet_sm90_(q?)\w*?_(\d+)x(\d+)_(\d+)x(\d+)_", event.name)
        if shape:
            m, n, k, stages = (int(shape[i]) for i in range(2, 6))
            seen += 1
            share = (m + n) * k * stages * (1 if shape[1] else 2) / event.args.shared_memory
            assert 0.6 < share <= 1, event.name
    assert seen > 50


def test_a_tensile_name_is_read_as_far_as_its_form_and_no_further():
    name = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_ISA942_WG64_4_1"
    found = decode.decode(name)
    says = {part.field: part.says for part in found.parts}
    assert says["dtype"] == "bf16 in, fp32 accumulation" and says["architecture"] == "gfx942"
    assert says["tile"] == "the block of the output a workgroup computes: 256 x 192, 64 deep"
    assert not found.whole and found.rest == ["its tuning parameters"]
    out = run("-m", "common", "decode", name, name.replace("WG64_4_1", "WG32_8_1")).stdout
    assert "No part that a rule reads differs; they differ in what no rule reads." in out


def test_two_names_differ_in_parts():
    a, b = (decode.decode(f"nvjet_sm90_tst_256x128_64x4_1x2_h_{part}_coopA_TNT") for part in ("bz", "badd"))
    ((field, x, y),) = decode.difference(a, b)
    assert (field, x[0].text, y[0].text) == ("epilogue", "bz", "badd")
    assert decode.difference(a, a) == []


def test_an_unknown_name_says_so_and_keeps_its_family():
    assert decode.decode("some::kernel<int>(float*)") == decode.Decoded(
        "some::kernel<int>(float*)", "other", "", "", [], [], False
    )
    liger = decode.decode("_geglu_tanh_forward_kernel")
    assert (liger.family, liger.origin, liger.whole) == ("elementwise", "Triton", False)
    odd = decode.decode("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_frobnicated_TNT")
    assert odd.rest == ["frobnicated"] and not odd.whole


def test_any_string_at_all_is_answered_quickly():
    rng = random.Random(0)
    pieces = [*string.printable, "<", ">", "(", "::", "at::native::", "Functor<", "nvjet_", "cutlass_80_", "sm80_xmma_"]
    pieces += [
        "_64x64",
        "tuple<C<1>, ",
        "{lambda(",
        "é",
        "\0",
        "cudnn_generated_",
        "triton_poi_fused_",
        "Cijk_",
        "ck_tile6",
        "a, ",
        "a_",
        "1x",
    ]
    for _ in range(3000):
        found = decode.decode("".join(rng.choices(pieces, k=rng.randrange(80))))
        assert found.family and isinstance(found.rest, list)
    for piece in pieces:
        assert decode.decode(piece * 50_000).family
        for other in (
            "at::native::vectorized_elementwise_kernel<",
            "nvjet_",
            "reduce_kernel<",
            "cutlass::device_kernel<",
        ):
            assert decode.decode(other + piece * 50_000).family


def _names(path: Path) -> list[str]:
    return list(dict.fromkeys(event.name for event in reading.read(path).of(GPU)))


def test_every_kernel_recorded_here_is_explained_but_free_names():
    left = [
        n
        for p in [*H200.rglob("*.json.gz"), *SITUATIONS.glob("*.json.gz")]
        for n in _names(p)
        if not decode.decode(n).whole
    ]
    assert set(left) == {"_geglu_tanh_forward_kernel", "geglu_gemm_tma", "geglu_gemm_gluon", "down_gemm_gluon"}


@pytest.mark.skipif(not FOREIGN.exists(), reason="other people's traces are not here")
def test_every_foreign_kernel_has_a_form():
    for path in FOREIGN.glob("*.json.gz"):
        for name in _names(path):
            found = decode.decode(name)
            free = ("Triton, by hand", "Tensile GEMM", "MIOpen convolution")
            assert found.form and (found.whole or found.form in free), name


def test_the_verb_says_how_much_of_a_trace_it_explains():
    out = run("-m", "common", "decode", str(SITUATIONS / "sdpa_flash.json.gz")).stdout
    assert "heads of 64; 128 queries by 128 keys a thread block of 4 warps" in out
    assert "Fully decoded: 1 of 1 names, 3 of 3 GPU events (100%)." in out


def test_the_verb_sets_two_names_against_each_other():
    a, b = (f"nvjet_sm90_tst_256x128_64x4_1x2_h_{part}_coopA_TNT" for part in ("bz", "badd"))
    assert "epilogue: bz (beta is zero" in run("-m", "common", "decode", a, b).stdout
    (one,) = json.loads(run("-m", "common", "decode", a, "--json").stdout)
    assert one["origin"] == "cuBLAS" and {"field": "layout", "text": "TNT"}.items() <= one["parts"][-1].items()


def test_names_and_traces_do_not_mix():
    done = run("-m", "common", "decode", "gemm", "a.json")
    assert done.returncode == 2 and "names or traces" in done.stderr
