"""What the parts of a kernel name say: a table that `decode` reads, a form of name after the other.

To teach a new part: add a row to its form; a new kind of name: add a Form. Names to test it on are in
tests/test_decode.py. What is INFERRED was read off names beside the strides, dtypes and shared memory that
tests/traces/h200/gemms.json.gz recorded with them, or follows another part's use; it may be wrong.
"""

from common import vocabulary
from common.vocabulary import (
    ATEN,
    CUDA,
    CUTLASS,
    FLASH,
    IGEMM,
    INDUCTOR,
    INFERRED,
    KINETO,
    NCCL,
    PLAIN,
    PTX,
    TENSILE,
    XFORMERS,
    Form,
    Rule,
)

FLAG = r"(true|false)"
T = r"((?:c10::|cutlass::)?\w+)(?=[,>) ])"  # a dtype in a template
XMMA_DTYPES = r"(bf16|f16|f32|tf32|f64|s8|e4m3|e5m2)"
CAN = "can apply {1}; the libraries take it for a plain bias too"
TILE = "a thread block computes {1} x {2} of the output"
DEPTH = "{1} of the inner dimension at a time; pipeline stages: {2}"
ARCHITECTURE = Rule(r"sm_?(\d+)", "architecture", lambda m: vocabulary.architecture(m[1]), CUDA)
CODENAME = Rule(
    r"(maxwell|volta|turing|ampere|hopper)", "architecture", lambda m: f"written for {vocabulary.CODENAMES[m[1]]}", CUDA
)
LAYOUT = Rule(r"([nt][nt])(?![a-z0-9])", "layout", lambda m: vocabulary.cutlass_layout(m[1]), CUTLASS)
LAYOUT_SEEN = Rule(r"([nt][nt])(?![a-z0-9])", "layout", lambda m: vocabulary.layout(m[1]), INFERRED)
LOOP = Rule(
    r"(vectorized|unrolled)_elementwise_kernel(?:_for_multi_outputs)?<(\d+)?", "loop",
    lambda m: f"each thread handles {m[2]} adjacent elements at once" if m[2] and m[1] == "vectorized"
    else "elements one by one, for strides, casts or several outputs", ATEN,
)  # fmt: skip
LAMBDA = Rule(
    r"(\w+)(?:<[\w:<> ]{1,60}>)?\((?:at|c10)::[^()]*\)::\{lambda", "computes", lambda m: vocabulary.function(m[1]), ATEN
)
FUNCTOR = Rule(
    r"(?:(?:Binary|AUnary|BUnary)Functor<(?:[\w:]+, )+(?:\w+::)*)?((?<!\w)\w*(?:[fF]unctor\w*|Ops))<",
    "computes", lambda m: vocabulary.function(m[1]), ATEN,
)  # fmt: skip
ELEMENT = Rule(
    rf"(?:\{{lambda\((?:bool, )*{T}[^{{}}()]*\)#|(?:Functor\w*|_add|Ops|kernel_impl|sum_functor|scalar_kernel)<{T})", "dtype",
    lambda m: vocabulary.dtype(m[1] or m[2]), ATEN,
)  # fmt: skip
POINTERS = Rule(
    r"(?:std::array|Array)<char\*, (\d+)", "operands",
    lambda m: "writes one tensor, reads none" if m[1] == "1" else f"writes one tensor, reads {int(m[1]) - 1}", ATEN,
)  # fmt: skip

FORMS = (
    Form("cuBLAS nvjet", r"^nvjet_", (
        ARCHITECTURE,
        Rule(r"([thsdqri]{3,6})(?=_)", "dtype", vocabulary.letters, INFERRED),
        Rule(r"mma(?=_)", "instruction", "the warp-level mma instructions", INFERRED),
        Rule(r"(\d+)x(\d+)x(\d+)_(\d+)(?=_)", "tile", TILE + ", {3} deep; pipeline stages: {4}", INFERRED),
        Rule(r"(\d+)x(\d+)x(\d+)(?=_)", "warp tile", "{1} x {2} x {3} a warp", INFERRED),
        Rule(r"(\d+)x(\d+)(?=_)", "tile", TILE, INFERRED),
        Rule(r"(\d+)x(\d+)(?=_)", "stages", DEPTH, INFERRED),
        Rule(r"(\d+)x(\d+)(?=_)", "cluster", "{1} x {2} thread blocks share their loads", INFERRED),
        Rule(r"2cta", "cluster", "two blocks form a pair for one tensor-core instruction", INFERRED),
        Rule(r"([hv])(?=_)", "order", lambda m: f"tiles in {'rows' if m[1] == 'h' else 'columns'}", INFERRED),
        Rule(r"bz", "epilogue", "beta is zero: the output is written and not read", INFERRED),
        Rule(r"badd", "epilogue", "adds what the output already holds (beta is not zero)", INFERRED),
        Rule(r"coop([AB])", "schedule", "two warpgroups cooperate on a tile, split along {1}", INFERRED),
        Rule(r"tma([A-D]+)", "schedule", "{1} through the tensor memory accelerator", INFERRED),
        Rule(r"align([A-D]+)(\d+)", "alignment", "{1}: multiples of {2} elements", INFERRED),
        Rule(r"splitK", "split", "the inner dimension in pieces, added up by a second kernel", INFERRED),
        Rule(r"(gelu|relu|d?silu|sigmoid)?bias", "epilogue", lambda m: f"adds a bias{f', then {m[1]}' if m[1] else ''}", INFERRED),
        Rule(r"algo(\d+)", "variant", "the library's own number of a variant: {1}", INFERRED),
        Rule(r"([NT][NT])([NT]{1,2})$", "layout", lambda m: vocabulary.layout(m[1]) + f"; the output's is {m[2]}", INFERRED),
    )),
    Form("CUTLASS 2.x", r"(cutlass_\d\d_\w+|cutlass_(?:wmma_)?(?:tensorop|simt)_\w+)", (
        Rule(r"cutlass(?:_(\d\d))?", "architecture", lambda m: vocabulary.architecture(m[1]) if m[1] else "any", CUTLASS),
        Rule(r"wmma_tensorop", "unit", "tensor cores, through the WMMA interface", CUTLASS),
        Rule(r"tensorop", "unit", "tensor cores", CUTLASS),
        Rule(r"simt", "unit", f"the ordinary cores, {PLAIN}", CUTLASS),
        Rule(r"(bf16|f16|tf32|f32|s8|s32)(?=_)", "dtype out", lambda m: vocabulary.dtype(m[1]), CUTLASS),
        Rule(r"(g?)([sdhicz])(\d*)(bf16|f16|tf32)?gemm", "instruction", vocabulary.gemm, CUTLASS),
        Rule(r"([sh])(\d*)(fprop|dgrad|wgrad)(?:_(optimized|analytic))?", "instruction",
             lambda m: f"convolution ({m[3]}), {vocabulary.instruction(m[2]) + ' tensor-core instruction' if m[2] else 'ordinary cores'}", CUTLASS),
        Rule(r"(relu|gelu)(?=_)", "epilogue", CAN, INFERRED),
        Rule(r"(bf16|f16|tf32|f32|s8)(?=_)", "dtype in", lambda m: vocabulary.dtype(m[1]), CUTLASS),
        Rule(r"(\d+)x(\d+)_(\d+)x(\d+)", "tile", TILE + ", {3} deep; pipeline stages: {4}", CUTLASS),
        Rule(r"(nhwc|nchw)", "layout", "{1}", CUTLASS),
        LAYOUT,
        Rule(r"align(\d+)", "alignment", "rows begin at multiples of {1} elements", CUTLASS),
    )),
    Form("CUTLASS 3.x", r"^(cutlass3x_\w+)", (
        Rule(r"cutlass3x_sm(\d+)", "architecture", lambda m: vocabulary.architecture(m[1]), CUTLASS),
        Rule(r"tensorop", "unit", "tensor cores", CUTLASS),
        Rule(r"s?(\d+x\d+x\d+)?gemm", "instruction", lambda m: m[1] or "GEMM", CUTLASS),
        Rule(r"([a-z0-9]+)_([a-z0-9]+)_([a-z0-9]+)_([a-z0-9]+)_([a-z0-9]+)(?=_\d+x)", "dtype",
             lambda m: f"{vocabulary.dtype(m[1])} x {vocabulary.dtype(m[2])} in, {vocabulary.dtype(m[3])} accumulation, {vocabulary.dtype(m[4])} added, {vocabulary.dtype(m[5])} out", CUTLASS),
        Rule(r"(\d+)x(\d+)x(\d+)", "tile", TILE + ", {3} deep", CUTLASS),
        Rule(r"(\d+)x(\d+)x1", "cluster", "{1} x {2} thread blocks share their loads", CUTLASS),
        Rule(r"(\d+)(?=_)", "stages", lambda m: m[1] if m[1] != "0" else "as many as fit", CUTLASS),
        Rule(r"([nt][nt])([nt])", "layout", lambda m: vocabulary.cutlass_layout(m[1]) + f"; the output's is {m[2]}", CUTLASS),
        Rule(r"align(\d+)", "alignment", "rows begin at multiples of {1} elements", CUTLASS),
        Rule(r"warpspecialized(?:_(pingpong|cooperative))?", "schedule", lambda m: f"warps that load and warps that compute{f', {m[1]}' if m[1] else ''}", CUTLASS),
        Rule(r"epi_(tma|nosmem)", "epilogue", "written through {1}", CUTLASS),
    )),
    Form("FlashAttention 3", r"flash::FlashAttn(?:Fwd|Bwd)Sm90<(.*)", (
        Rule(r"CollectiveMainloop(Fwd|Bwd)\w*<(\d+)", "stages", "pipeline stages: {2}", INFERRED),
        Rule(r"C<(\d+)>, (?:cute::)?C<(\d+)>, (?:cute::)?C<(?!1>)(\d+)>", "tile", "{1} queries by {2} keys a thread block, heads of {3}", INFERRED),
        Rule(r"(cutlass::(?:bfloat16_t|half_t|float_e4m3_t))", "dtype", lambda m: vocabulary.dtype(m[1]), INFERRED),
    ), needs=("stages", "tile", "dtype")),
    Form("CUTLASS 3.x template", r"cutlass::device_kernel<(.*)", (
        Rule(r"Mainloop(Sm\d+)(\w*)<(\d+)", "stages", lambda m: f"{m[3]}, {m[1]} {m[2]}", CUTLASS),
        Rule(r"(?:tuple<)?(?:cute::)?C<(\d+)>, (?:cute::)?C<(\d+)>, (?:cute::)?C<1>", "cluster", "{1} x {2} thread blocks share their loads", CUTLASS),
        Rule(r"(Kernel\w*(?:WarpSpecialized|Tma|CpAsync)\w*)", "schedule", "{1}", CUTLASS),
        Rule(r"C<(\d+)>, (?:cute::)?C<(\d+)>, (?:cute::)?C<(?!1>)(\d+)>", "tile", TILE + ", {3} deep", CUTLASS),
        Rule(r"(cutlass::(?:bfloat16_t|half_t|float_e4m3_t|float_e5m2_t|tfloat32_t))", "dtype", lambda m: vocabulary.dtype(m[1]), CUTLASS),
        Rule(r"fusion::(\w+)", "epilogue", "{1}", CUTLASS),
    ), needs=("stages", "tile", "schedule", "dtype")),
    Form("cuBLAS or cuDNN xmma", r"^(?=sm\d+_xmma_)", (
        ARCHITECTURE,
        Rule(r"xmma_gemm", "instruction", "a GEMM", INFERRED),
        Rule(r"xmma_(fprop|dgrad|wgrad)_implicit_gemm(?:_indexed)?", "instruction", "a convolution ({1}) as a GEMM", INFERRED),
        Rule("_".join((XMMA_DTYPES * 2, XMMA_DTYPES * 2, XMMA_DTYPES)), "dtype", vocabulary.xmma, INFERRED),
        Rule(r"(nhwckrsc|nchwkcrs)_(nhwc|nchw)", "layout", "data and filter {1}, output {2}", INFERRED),
        Rule(r"([nt][nt])_([nt])(?=_)", "layout", lambda m: vocabulary.layout(m[1]), INFERRED),
        Rule(r"tilesize(\d+)x(\d+)x(\d+)", "tile", TILE + ", {3} deep", INFERRED),
        Rule(r"stage(\d+)", "stages", "pipeline stages: {1}", INFERRED),
        Rule(r"warpsize(\d+x\d+x\d+)", "warps", "{1} warps share a tile", INFERRED),
        Rule(r"warpgroupsize(\d+x\d+x\d+)", "warps", "{1} warpgroups share a tile: Hopper's wgmma", INFERRED),
        Rule(r"g(\d+)(?=_)", "groups", "groups of channels: {1}", INFERRED),
        Rule(r"tensor(\d+x\d+x\d+)", "instruction", "{1} tensor-core instruction", PTX),
        Rule(r"ffma", "unit", f"fused multiply-adds on the ordinary cores, {PLAIN}", INFERRED),
        Rule(r"(beta0|bias|relu|gelu)(?=_)", "epilogue", "{1}", INFERRED),
        Rule(r"align([ac])(\d+)", "alignment", "{1}: multiples of {2} elements", INFERRED),
        Rule(r"align([ac])(\d+)", "alignment", "{1}: multiples of {2} elements", INFERRED),
        Rule(r"execute_(?:(split_k|segment_k_off|segment_k_on)_)?kernel", "split",
             lambda m: {"split_k": "the inner dimension in pieces", "segment_k_on": "the inner dimension in pieces"}.get(m[1], "the inner dimension in one piece"), INFERRED),
        Rule(r"_?(5x_)?(cublas|cudnn)", "library", "part of {2}", INFERRED),
    )),
    Form("cuBLAS, by architecture", r"^(?:cudnn_)?((?:maxwell|volta|turing|ampere|hopper)_.*)", (
        CODENAME,
        Rule(r"(bf16|fp16|f16|tf32)(?=_)", "dtype out", lambda m: vocabulary.dtype(m[1]), INFERRED),
        Rule(r"(g?)([sdhicz])(\d*)gemm(?=_)", "instruction", vocabulary.gemm, INFERRED),
        Rule(r"(s|h)(\d*)cudnn", "instruction", lambda m: f"a convolution, {'fp32' if m[1] == 's' else 'fp16'}{'' if m[2] else f', {PLAIN}'}", INFERRED),
        Rule(r"(bf16|fp16|f16|tf32)(?=_)", "dtype in", lambda m: vocabulary.dtype(m[1]), INFERRED),
        Rule(r"(\d+)x(\d+)", "tile", TILE, INFERRED),
        Rule(r"ldg(\d+)", "alignment", "loads {1} elements at once", INFERRED),
        Rule(r"(relu|gelu)(?=_)", "epilogue", CAN, INFERRED),
        Rule(r"f2f", "epilogue", "converts the fp32 sum to the output's dtype", INFERRED),
        Rule(r"stages_(\d+)x(\d+)", "stages", DEPTH, INFERRED),
        Rule(r"sliced(\d+)x(\d+)", "split", "{2} groups of warps share the inner dimension of a tile", INFERRED),
        Rule(r"splitK", "split", "the inner dimension in pieces", INFERRED),
        Rule(r"xregs_(large|medium|small)", "variant", "a {1} tile in registers", INFERRED),
        LAYOUT_SEEN,
        Rule(r"v(\d+)", "variant", "version {1}", INFERRED),
    )),
    Form("cuBLAS helper", r"((?:cublasLt::splitKreduce_kernel|gemv\w*::kernel|gemv\w*_kernel\w*|gemmk1_kernel|dot_kernel|epilogue::impl::globalKernel)<.*)", (
        Rule(r"splitKreduce", "computes", "adds up the pieces of a GEMM that split its inner dimension", INFERRED),
        Rule(r"gemv", "computes", "a matrix times a vector: bound by memory", INFERRED),
        Rule(r"gemmk1", "computes", "a GEMM whose inner dimension is 1", INFERRED),
        Rule(r"dot_kernel", "computes", "a dot product", INFERRED),
        Rule(r"globalKernel", "computes", "a bias or activation as a kernel of its own, behind a GEMM", INFERRED),
        Rule(r"\b(__half|__nv_bfloat16|double)\b", "dtype", lambda m: vocabulary.dtype(m[1]), INFERRED),
        Rule(r"\b(float)\b", "dtype", "fp32", INFERRED),
    ), needs=("computes", "dtype")),
    Form("cuDNN helper", r"((?:nchwToNhwc|nhwcToNchw|computeOffsets)Kernel.*|fft2d_.*)", (
        Rule(r"nchwToNhwc", "computes", "moves channels last, for a kernel that wants them there", INFERRED),
        Rule(r"nhwcToNchw", "computes", "moves channels back in front", INFERRED),
        Rule(r"computeOffsets", "computes", "offsets for a convolution that follows", INFERRED),
        Rule(r"fft2d_(r2c|c2r)_(\d+x\d+)", "computes", "a convolution by Fourier transforms of {2}: this is one of its transforms", INFERRED),
        Rule(r"<(__half|__nv_bfloat16|float)", "dtype", lambda m: vocabulary.dtype(m[1]), INFERRED),
    ), needs=("computes",)),
    Form("memory-efficient attention", r"^(fmha_cutlass[FB]_\w+)", (
        Rule(r"fmha_cutlass([FB])", "computes", lambda m: f"fused attention, {'forward' if m[1] == 'F' else 'backward'}", XFORMERS),
        Rule(r"(bf16|f16|f32)", "dtype", lambda m: vocabulary.dtype(m[1]), XFORMERS),
        Rule(r"(aligned|notaligned)", "alignment", "rows {1} to 16 bytes", XFORMERS),
        Rule(r"(\d+)x(\d+)", "tile", "{1} queries by {2} keys a thread block", XFORMERS),
        Rule(r"k(\d+)", "head", "heads of up to {1}", XFORMERS),
        Rule(r"(dropout)", "computes", "with dropout", XFORMERS),
        Rule(r"(rf|gmem)(?=_)", "accumulator", lambda m: f"the output {'in registers' if m[1] == 'rf' else 'in memory'}", XFORMERS),
        Rule(r"seqaligned", "alignment", "the sequence a multiple of the tile", XFORMERS),
        ARCHITECTURE,
    )),
    Form("FlashAttention", r"flash::flash_(?:fwd|bwd)\w*<(.*)", (
        Rule(r"Flash_\wwd_kernel_traits<(\d+), (\d+), (\d+), (\d+)", "tile", "heads of {1}; {2} queries by {3} keys a thread block of {4} warps", FLASH),
        Rule(r"(cutlass::(?:bfloat16_t|half_t))", "dtype", lambda m: vocabulary.dtype(m[1]), FLASH),
        Rule(r"(?<=> >, )" + ", ".join([FLAG] * 8), "variant",
             vocabulary.flags("dropout", "causal", "local window", "alibi", "even sequence", "even head", "softcap", "returns softmax"), FLASH),
        Rule(r"(?<=> >, )" + ", ".join([FLAG] * 7), "variant",
             vocabulary.flags("dropout", "causal", "local window", "alibi", "even sequence", "even head", "returns softmax or softcap"), FLASH),
    ), needs=("tile", "dtype")),
    Form("cuDNN attention", r"^cudnn_generated_", (
        Rule(r"fort_native_sdpa", "computes", "fused attention, generated for this problem", INFERRED),
        ARCHITECTURE,
        Rule(r"flash_(fprop|bprop)", "computes", lambda m: f"flash algorithm, {'forward' if m[1] == 'fprop' else 'backward'}", INFERRED),
        Rule(r"(wgmma|wmma|mma)_(f16|bf16|f8)", "instruction", "{1} on 16-bit floats (bf16 says f16 too)", INFERRED),
        Rule(r"knob_(\d+)", "variant", "the generator's own setting {1}", INFERRED),
        Rule(r"(\d+)x(\d+)x(\d+)", "tile", "{1} queries by {2} keys, heads of {3}", INFERRED),
        Rule(r"(\d+)x(\d+)x(\d+)", "warps", "{1} x {2} x {3}", INFERRED),
        Rule(r"cga(\d+)x(\d+)x(\d+)", "cluster", "{1} x {2} x {3} thread blocks", INFERRED),
        Rule(r"kernel(\d+)_(\d+)", "variant", "kernel {1} of the plan", INFERRED),
    )),
    Form("ATen softmax", r"softmax_warp_(?:forward|backward)<(.*)", (
        Rule(r"^(\S+), (\S+), (\S+), (\d+), (true|false)", "computes",
             lambda m: f"{'log-' * (m[5] == 'true')}softmax of rows up to {2 ** int(m[4][:3]):,}, each by one warp", ATEN),
        Rule(r"(?<=<)(c10::\w+|float|double)|(\b(?:c10::BFloat16|c10::Half|float|double)\b)", "dtype", lambda m: vocabulary.dtype(m[1] or m[2]), ATEN),
    ), needs=("computes",)),
    Form("ATen reduction", r"reduce_kernel<(.*)", (
        Rule(r"^(\d+), (\d+)", "loop", "at most {1} threads a block; outputs a thread: {2}", ATEN),
        LAMBDA, FUNCTOR, ELEMENT,
    ), needs=("computes", "dtype")),
    Form("ATen foreach", r"multi_tensor_apply_kernel<(.*)", (
        Rule(r"TensorListMetadata<(\d)", "operands", "{1} lists of tensors in one launch", ATEN),
        Rule(rf"(\w+)Functor<{T}", "computes", lambda m: f"{m[1]} on {vocabulary.dtype(m[2])}", ATEN),
        Rule(r"(Copy|std::plus|std::multiplies|Sqrt|Neg|Abs)<", "computes", "{1}", ATEN),
    ), needs=("computes",)),
    Form("ATen elementwise", r"((?<!\w)\w*elementwise\w*<.*)", (
        LOOP,
        Rule(r"distribution_elementwise_grid_stride_kernel<(\w+), (\d+)", "computes", "random numbers, {2} at once", ATEN),
        Rule(r"index_elementwise_kernel", "loop", "elements gathered or scattered by an index", ATEN),
        Rule(r"elementwise_kernel(?:_manual_unroll|_with_index)?<(?:(\d+), (\d+))?", "loop", "elements one by one: strides or broadcasting rule out vectors", ATEN),
        LAMBDA, FUNCTOR, ELEMENT, POINTERS,
    ), needs=("computes",)),
    Form("ATen, named after what it does", r"at::native::((?:\w+::)*\w+(?:[<(].*)?)", (
        Rule(r"(?:\w+::)*(\w+)", "computes", lambda m: f"by its name: {m[1].replace('_', ' ')}", INFERRED),
        Rule(r"<(c10::BFloat16|c10::Half|float|double|bool)\b", "dtype", lambda m: vocabulary.dtype(m[1]), ATEN),
    ), needs=("computes",)),
    Form("Inductor", r"^(triton_(?:poi|red|per|tem|for|mm)_\w+)", (
        Rule(r"triton_poi", "computes", "a pointwise kernel, generated", INDUCTOR),
        Rule(r"triton_red", "computes", "a reduction in a loop, generated", INDUCTOR),
        Rule(r"triton_per", "computes", "a reduction that holds its rows in registers (persistent), generated", INDUCTOR),
        Rule(r"triton_tem", "computes", "Inductor's own GEMM or attention template", INDUCTOR),
        Rule(r"triton_for", "computes", "many pointwise kernels in one (foreach)", INDUCTOR),
        Rule(r"fused_(\w*?)_?(?=\d+$)", "came from", lambda m: f"the ops it was generated from, sorted by name, which is not what it runs: {m[1] or '(none)'}", INDUCTOR),
        Rule(r"(\d+)$", "number", "number {1} of the kernels generated for its graph", INDUCTOR),
    )),
    Form("NCCL", r"^(nccl(?:Dev)?Kernel_\w+)", (
        Rule(r"nccl(?:Dev)?Kernel_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)", "computes", "{1}", NCCL),
        Rule(r"(Sum|Prod|MinMax|Min|Max|PreMulSum|SumPostDiv)(?=_)", "entry point", "one kernel stands for several: this is not always the reduction that ran", NCCL),
        Rule(r"(bf16|f16|f32|f64|i8|u8|i32|u32|i64|u64|int8_t|float|half)(?=_|$)", "dtype", lambda m: vocabulary.dtype(m[1]), NCCL),
        Rule(r"(RING|TREE|COLLNET|NVLS|PAT)\w*", "entry point", "one kernel stands for several: this does not tell which algorithm and protocol ran", NCCL),
    )),
    Form("copy or memset", r"^(?:Memcpy|Memset)", (
        Rule(r"PtoP ?\((\w+) -> (\w+)\)", "computes", "copies from one GPU to another", KINETO),
        Rule(r"(?:(HtoD)|(DtoH)|(DtoD)|(HtoH)|(PtoP)|(Unknown)) ?\((\w+) -> (\w+)\)", "computes", lambda m: f"copies from {m[7].lower()} to {m[8].lower()} memory", KINETO),
        Rule(r"\((\w+)\)", "computes", lambda m: f"fills {m[1].lower()} memory with a value", KINETO),
    )),
    Form("Tensile GEMM", r"^(Cijk_.*)", (
        Rule(r"Cijk_A(ilk|lik)_B(ljk|jlk)", "layout", vocabulary.tensile, TENSILE),
        Rule(r"(HHS|BBS|HSS|BSS|SB|DB|F8\w+)(?:_BH)?(?=_)", "dtype",
             lambda m: {"H": "fp16", "B": "bf16", "S": "fp32", "D": "fp64", "F": "fp8"}[m[1][0]] + " in" + (", fp32 accumulation" if m[1][-1] == "S" else ""), TENSILE),
        Rule(r"Bias", "epilogue", "can add a bias", TENSILE),
        Rule(r"MT(\d+)x(\d+)x(\d+)", "tile", "the block of the output a workgroup computes: {1} x {2}, {3} deep", TENSILE),
        Rule(r"MI(\d+x\d+x\d+)", "instruction", "{1} matrix instruction", TENSILE),
        Rule(r"ISA(\w{3})", "architecture", "gfx{1}", TENSILE),
    ), needs=("layout", "dtype", "tile", "instruction", "architecture", "its tuning parameters")),
    Form("MIOpen convolution", r"^(igemm_.*)", (
        Rule(r"igemm_(fwd|bwd|wrw)", "computes", vocabulary.igemm, IGEMM),
        Rule(r"gtcx?(\d?)", "instruction", "the matrix cores (XDLops)", IGEMM),
        Rule(r"(nhwc|nchw)", "layout", "{1}", IGEMM),
        Rule(r"(bf16|fp16|fp32)", "dtype", lambda m: vocabulary.dtype(m[1]), IGEMM),
        Rule(r"bt(\d+)x(\d+)x(\d+)", "tile", "{1} x {2} of the output a workgroup, {3} deep", IGEMM),
        Rule(r"wt(\d+)x(\d+)x(\d+)", "instruction", "{1} x {2} x {3} a wave", IGEMM),
    ), needs=("computes", "layout", "dtype", "tile", "instruction", "its tuning parameters")),
    Form("MIOpen transpose", r"^(batched_transpose_\w+)", (
        Rule(r"batched_transpose", "computes", "moves channels last or back, for a convolution that wants them there", INFERRED),
        Rule(r"(\d+)x(\d+)", "tile", "{1} x {2} elements a workgroup", INFERRED),
        Rule(r"pack_(\d+)x(\d+)", "alignment", "{1} x {2} elements at once", INFERRED),
        Rule(r"ediv_(\d+)x(\d+)", "alignment", "sides divisible by {1} and {2}", INFERRED),
        Rule(r"(half|float|byte)", "dtype", lambda m: {"half": "any of 16 bits", "float": "any of 32 bits", "byte": "any of 8 bits"}[m[1]], INFERRED),
    )),
    Form("MIOpen tensor op", r"^(SubTensorOpWith\w+)", (
        Rule(r"SubTensorOpWith(Scalar|Cast|Transform)(?:Tensor)?(\d)d", "computes", "{1}, on a tensor seen in {2}d: sets, scales or casts it", INFERRED),
    )),
    Form("Composable Kernel, mangled", r"(?:ck_tile|2ck)(\d.*)", (
        Rule(r"NS_\d{1,2}([A-Z]\w+?)I", "computes", "{1}", INFERRED),
        Rule(r"(?<=Problem)I(DF16b|DF16_|f)", "dtype", lambda m: {"DF16b": "bf16", "DF16_": "fp16", "f": "fp32"}[m[1]], INFERRED),
    ), needs=("computes",)),
    Form("another library's C++", r"^(?:void )?((?:vllm|flashinfer|deep_gemm|apex|marlin|at_cuda_detail|cub|thrust)::.*)", (
        Rule(r"(\w+)::(?:\w+::)*(\w+)", "computes", "by its name: {2}, of {1}", INFERRED),
        Rule(r"^\w+(?:::\w+)*<(__hip_bfloat16|__nv_bfloat16|c10::BFloat16|c10::Half|__half|half)\b", "dtype", lambda m: vocabulary.dtype(m[1]), INFERRED),
    ), needs=("computes",)),
    # Last: a bare name. What its author says of it is not a convention, so it never counts as fully decoded.
    Form("Triton, by hand", r"^([A-Za-z_]\w*)$", (
        Rule(r".+", "named", "a Triton function's name as its author chose it: it follows no convention", INFERRED),
        Rule(r"_([a-z0-9]*(?:bf16|fp16|mxfp4|fp8(?:e4m3|e5m2)?)(?:x\w+?)*)(?=_|$)", "dtype", "{1}", INFERRED),
        Rule(r"_(\d+)x(\d+)x(\d+)", "tile", TILE + ", {3} deep", INFERRED),
        Rule(r"_(swiglu|gelu|relu|silu)(?=_|$)", "epilogue", "{1}", INFERRED),
    ), needs=("the rest, which is free text",)),
)  # fmt: skip
