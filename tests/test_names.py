"""Family, origin and short form of kernel names: those of the recorded traces, the articles, and other people's."""

import random
import string

from common import names, reading, work

import pytest
from conftest import H200

GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::"
    "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl(...), std::array<char*, 2ul>)"
)
MUL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
    "c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, ...)"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
    "cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false>"
    "(pytorch_flash::Flash_fwd_params)"
)
CUDNN = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_6_128x64x64_4x1x1_kernel0_0"
KERNELS = [
    # name, family, origin, short ("" where it stays as it is)
    ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn", "gemm", "cuBLAS", ""),
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "gemm", "cuBLAS", ""),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas", "gemm", "cuBLAS", ""),
    ("volta_sgemm_128x64_nn", "gemm", "cuBLAS", ""),
    ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align8", "gemm", "CUTLASS", ""),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm>(cutlass_80_tensorop_s16816gemm::Params)", "gemm", "CUTLASS", "cutlass_80_tensorop_s16816gemm"),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", "attention", "CUTLASS", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"),
    (FLASH, "attention", "FlashAttention", "pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>, false>"),
    (CUDNN, "attention", "cuDNN", ""),
    (GELU, "elementwise", "ATen", "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>"),
    (MUL, "elementwise", "ATen", "vectorized_elementwise_kernel<4, MulFunctor<float>>"),
    ("triton_poi_fused__unsafe_view_gelu_mul_0", "elementwise", "Inductor", ""),
    ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "reduction", "Inductor", ""),
    ("triton_tem_fused__unsafe_view_gelu_mm_mul_t_view_2", "gemm", "Inductor", ""),
    ("graph_0_cpp_fused__unsafe_view_gelu_mul_0", "elementwise", "Inductor", ""),
    ("_geglu_tanh_forward_kernel", "elementwise", "Triton", ""),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", "NCCL", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    ("Memcpy DtoD (Device -> Device)", "copy", "driver", "Memcpy DtoD"),
    ("Memset (Device)", "memset", "driver", "Memset"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64", "gemm", "Tensile", ""),
    ("some::kernel<int>(float*)", "other", "", "some::kernel<int>"),
    ("aten::addmm", "gemm", "ATen", ""),
    ("aten::gelu", "elementwise", "ATen", ""),
    ("", "other", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "family", "origin", "short"), KERNELS, ids=[k[0][:40] for k in KERNELS])
def test_family_origin_and_short_form(name, family, origin, short):
    assert names.classify(name) == (family, origin)
    assert names.short(name) == (short or name)


def test_every_recorded_kernel_has_a_family_and_an_origin():
    for path in H200.rglob("*.json.gz"):
        for row in work.per_step(reading.read(path)).rows:
            assert row.family != names.OTHER and row.origin, row.name


def test_any_string_at_all_has_an_answer():
    rng = random.Random(0)
    pieces = [*string.printable, "<", ">", "(", ")", "::", "at::native::", "Functor<", "gpu_kernel_impl<", "é", "\0"]
    for _ in range(3000):
        name = "".join(rng.choices(pieces, k=rng.randrange(60)))
        family, origin = names.classify(name)
        assert family and isinstance(origin, str) and isinstance(names.short(name), str)
    assert names.short("f<" * 5000) and names.short("<" * 5000) is not None
    for piece in ("cudnn", "at::native", "flash", "gemm", "Functor<"):  # a hundred kilobytes take no time
        assert names.classify(piece * 20_000) and names.short(piece * 20_000)
