"""A kernel or op name -> what it does (family), who made it (origin), and a short form of it."""

import re
from functools import cache

GEMM, ATTENTION, ELEMENTWISE, REDUCTION = "gemm", "attention", "elementwise", "reduction"
COPY, MEMSET, COMMUNICATION, OTHER = "copy", "memset", "communication", "other"

# The first rule that matches decides. To teach a new kernel: add a row, and its name to tests/test_names.py.
RULES = [
    # pattern, family, origin
    (r"^Memcpy |^CopyDeviceTo|^__amd_rocclr_copy", COPY, "driver"),
    (r"^Memset |^__amd_rocclr_fill", MEMSET, "driver"),
    (r"^nccl|^ncclDevKernel|^ncclKernel", COMMUNICATION, "NCCL"),
    (r"cudnn\w*_sdpa|^cudnn.*sdpa", ATTENTION, "cuDNN"),
    (r"^fmha_cutlass|cutlass.*fmha|fmha.*cutlass", ATTENTION, "CUTLASS"),
    (r"pytorch_flash|flash_[fb]wd|flash::", ATTENTION, "FlashAttention"),
    (r"splitKreduce", REDUCTION, "cuBLAS"),
    (r"^nvjet_", GEMM, "cuBLAS"),
    (r"^(ampere|volta|turing|maxwell|hopper|sm\d+_xmma)_?(\w*gemm|\w*gemv)(?!.*cudnn)", GEMM, "cuBLAS"),
    (r"^(void )?(gemv|gemmk1|std::enable_if<.*internal::gemv|gemmSN|gemvNSP|dot_kernel|cublas)", GEMM, "cuBLAS"),
    (r"cublasLtEpilogue|cublasLt::epilogue|^void epilogue::impl", ELEMENTWISE, "cuBLAS"),
    (r"xmma_(fprop|dgrad|wgrad)|cudnn.*(scudnn|conv|implicit_gemm|winograd)", GEMM, "cuDNN"),
    (r"nchwToNhwc|nhwcToNchw", COPY, "cuDNN"),
    (r"cudnn::bn_|cudnn.*(norm|softmax)", REDUCTION, "cuDNN"),
    (r"cudnn", OTHER, "cuDNN"),
    (r"cutlass.*gemm|cutlass::device_kernel|cutlass::gemm", GEMM, "CUTLASS"),
    (r"^triton_tem_\w*(attention|sdpa)", ATTENTION, "Inductor"),
    (r"^triton_tem_|^triton_mm", GEMM, "Inductor"),
    (r"^triton_(red|per)_", REDUCTION, "Inductor"),
    (r"^triton_(poi|for)_|_?cpp_fused_", ELEMENTWISE, "Inductor"),
    (r"^void at::native::(\(anonymous namespace\)::)?distribution_elementwise", ELEMENTWISE, "ATen"),
    (r"^void (\(anonymous namespace\)::)?softmax_warp_", REDUCTION, "ATen"),
    (r"^void \(anonymous namespace\)::elementwise_kernel", ELEMENTWISE, "ATen"),
    (r"at::native.*(direct_copy_kernel|CatArrayBatchedCopy|multi_tensor_apply_kernel.*\bCopy<)", COPY, "ATen"),
    (r"at::native.*(reduce_kernel|[sS]oft[mM]ax|norm|Norm|cunn_|scan|sort|topk|TopK)", REDUCTION, "ATen"),
    (r"at::native.*(elementwise|multi_tensor_apply|dropout|Functor)", ELEMENTWISE, "ATen"),
    (r"at::(native|cuda)", OTHER, "ATen"),
    (r"^Cijk_", GEMM, "Tensile"),
    (r"^igemm_|^gfx9\w*_fp|MIOpen|^miopen", GEMM, "MIOpen"),
    (r"^batched_transpose_", COPY, "MIOpen"),
    (r"^SubTensorOp", ELEMENTWISE, "MIOpen"),
    (r"^kernel_gemm_xdl|(ck_tile|_ZN2ck|ck::).*[gG]emm", GEMM, "CK"),
    (r"(ck_tile|_ZN2ck|ck::).*Fmha", ATTENTION, "CK"),
    (r"(ck_tile|_ZN2ck|ck::).*([nN]orm|[sS]oftmax|[rR]educe)", REDUCTION, "CK"),
    (r"ck_tile|_ZN2ck|ck::", OTHER, "CK"),
    (r"^void vllm::\w*attention", ATTENTION, "vLLM"),
    (r"^void vllm::\w*norm", REDUCTION, "vLLM"),
    (r"^void vllm::\w*cache", COPY, "vLLM"),
    (r"^void vllm::\w*(rotary|activation|act_and_mul)", ELEMENTWISE, "vLLM"),
    (r"^void vllm::", OTHER, "vLLM"),
    (r"^void deep_gemm::", GEMM, "DeepGEMM"),
    (r"^void marlin::", GEMM, "Marlin"),
    (r"(cub|thrust)::\w*", OTHER, "CUB"),
    (r"^fft2d_|^void fft2d_", OTHER, "cuDNN"),
    # ops, in the trace of a CPU
    (
        r"^(aten|mkldnn|quantized)::_?(mm|addmm|bmm|baddbmm|linear_pointwise|convolution|mkldnn_convolution)\b",
        GEMM,
        "ATen",
    ),
    (r"^aten::_?\w*scaled_dot_product", ATTENTION, "ATen"),
    (r"^aten::(copy_|clone|_to_copy|cat|contiguous)$", COPY, "ATen"),
    (r"^aten::(zero_|zeros|fill_)$", MEMSET, "ATen"),
    (r"^aten::\w*(sum|mean|softmax|norm|amax|max|min|var|std|argmax)\w*$", REDUCTION, "ATen"),
    (r"^aten::", ELEMENTWISE, "ATen"),
    # A name without a signature that nobody above claims comes from a Triton kernel: C++ names carry their arguments.
    (r"^\w*(attention|attn|flash)\w*$", ATTENTION, "Triton"),
    (r"^\w*(gemm|matmul|_mm|fused_moe)\w*$", GEMM, "Triton"),
    (r"^\w*(softmax|norm|reduce|sum)\w*$", REDUCTION, "Triton"),
    (r"^\w*(glu|gelu|silu|relu|rope|rotary|add|mul)\w*$", ELEMENTWISE, "Triton"),
    (r"^[a-zA-Z_]\w*$", OTHER, "Triton"),
    (r"", OTHER, ""),
]
_RULES = [(re.compile(pattern), family, origin) for pattern, family, origin in RULES]

# Ops that only rewrite shape and stride: they launch nothing and move nothing.
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("t", "transpose", "reshape", "view", "_reshape_alias", "_unsafe_view", "as_strided", "permute", "numpy_T"),
        *("expand", "expand_as", "unsqueeze", "squeeze", "slice", "select", "narrow", "detach", "alias", "lift_fresh"),
        *("resolve_conj", "resolve_neg"),
    )
)
# These launch nothing either, but allocate or wait.
METADATA_OPS = VIEWS | {
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "resize_", "item", "is_nonzero")
}

# Rows of a compiled function's own bookkeeping: they are recorded like ops.
COMPILE_ROWS = re.compile(
    r"^(TorchDynamo |Torch-Compiled Region|AOTDispatcher |Pregraph bytecode|## Call CompiledFxGraph|Inductor )"
)


@cache
def classify(name: str) -> tuple[str, str]:
    """(family, origin); origin is "" where the name does not tell. What tells stands early, so long names are cut."""
    return next((family, origin) for pattern, family, origin in _RULES if pattern.search(name[:1000]))


NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\bvoid |"
    r"\b(?:at::native|at::detail|at::cuda::detail|c10|std|cutlass|internal|binary_internal)::"
)


def short(name: str) -> str:
    """A C++ template name down to what tells kernels apart; other names as they are.

    Gone: namespaces, the list of arguments, lambdas, and template arguments after the one that says what is computed.
    """
    if "(" not in name and "<" not in name or name.startswith("Memcpy") and "Pageable" in name:
        return name  # that a copy is from pageable memory is the point of it
    name = NOISE.sub("", name)
    wrapped = re.match(r"(?:cutlass::)?Kernel2?<(\w+)>", name)
    if wrapped:
        return wrapped[1]
    head, arguments = _split(name)
    kept = [_strip(argument) for argument in arguments]
    telling = [k for k in kept if not re.match(r"(array|Array|\w*OffsetCalculator|Load\w+|Store\w+|memory::)", k)]
    return f"{head}<{', '.join(telling[:3])}>" if telling else head


def _split(name: str) -> tuple[str, list[str]]:
    """`f<a, g<b>>(x)` -> ("f", ["a", "g<b>"]). A name that breaks off inside gives what is there."""
    start = name.find("<")
    if start < 0 or 0 <= name.find("(") < start:
        return re.split(r"[(<]", name, maxsplit=1)[0].strip(), []
    depth, parts, begin = 0, [], start + 1
    for i in range(start, len(name)):
        if name[i] in "<({":
            depth += 1
        elif name[i] in ">)}":
            depth -= 1
            if depth == 0:
                parts.append(name[begin:i])
                break
        elif name[i] == "," and depth == 1:
            parts.append(name[begin:i])
            begin = i + 1
    return name[:start].strip(), [part.strip() for part in parts]


TELLING = re.compile(
    r"\b(?!gpu_)(\w*(?:[fF]unctor\w*|Ops|kernel_cuda|cuda_kernel|kernel_impl|KernelImpl))(?:<(\w+)[^<>()]*>)?"
)


def _strip(argument: str) -> str:
    """The innermost part that computes: `gpu_kernel_impl<AddFunctor<float> >(Iterator&)` -> `AddFunctor<float>`."""
    telling = TELLING.findall(argument)
    if telling:
        what, dtype = telling[-1]
        return f"{what}<{dtype}>" if dtype else what
    head, inside = _split(argument)
    plain = [part for part in inside if re.fullmatch(r"[\w:]+", part)]
    return f"{head}<{', '.join(plain[:4])}>" if plain else head
