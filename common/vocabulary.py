"""The words of kernel names: dtypes, architectures, layouts, instructions, and where each spelling is documented."""

import re
from collections.abc import Callable
from dataclasses import dataclass

INFERRED = ""
PLAIN = "without tensor cores"  # `explain` looks for these words
CUTLASS = "CUTLASS, python/cutlass_library: gemm_operation.py and library.py"
CUDA = "CUDA C++ Programming Guide, compute capabilities"
PTX = "PTX ISA, mma and wgmma"
FLASH = "FlashAttention 2, flash_fwd_kernel.h and kernel_traits.h"
XFORMERS = "PyTorch, mem_eff_attention/kernels/generate_kernels.py"
ATEN = "PyTorch, ATen/native/cuda"
INDUCTOR = "PyTorch, torch/_inductor: utils.py, get_fused_kernel_name; codegen/triton.py"
NCCL = "NCCL, src/device/generate.py"
KINETO = "Kineto, CuptiActivity.cpp: names of copies and memsets"
TENSILE = "Tensile documentation, kernel parameters and solution naming"
IGEMM = "ROCm iGEMMgen, kernel naming"


@dataclass(frozen=True)
class Rule:
    """One part: its pattern, the field it fills, what it says, and where that is documented ("": it is inferred).

    says: text with {1}, {2} for the groups of the match, or a function of the match.
    """

    pattern: str
    field: str
    says: str | Callable[[re.Match], str]
    source: str


@dataclass(frozen=True)
class Form:
    """A kind of name. Its rules are tried at each place from left to right, in their order, each at most once.

    needs: for C++ templates, of which much says nothing: the fields that must be found for the name to count as
    fully decoded. Without it every part must be.
    """

    name: str
    when: str  # what matches is where the parts begin, or its group 1 holds them
    rules: tuple[Rule, ...]
    needs: tuple[str, ...] = ()


DTYPES = {
    **dict.fromkeys(
        ("c10::BFloat16", "__nv_bfloat16", "__hip_bfloat16", "cutlass::bfloat16_t", "bfloat16_t", "bf16", "BFloat16"),
        "bf16",
    ),
    **dict.fromkeys(("c10::Half", "__half", "cutlass::half_t", "half_t", "half", "f16", "fp16", "Half"), "fp16"),
    **dict.fromkeys(("float", "f32", "fp32", "cutlass::tfloat32_t"), "fp32"),
    **dict.fromkeys(("double", "f64", "fp64"), "fp64"),
    **dict.fromkeys(("e4m3", "c10::Float8_e4m3fn", "cutlass::float_e4m3_t"), "fp8 (e4m3)"),
    **dict.fromkeys(("e5m2", "c10::Float8_e5m2", "cutlass::float_e5m2_t"), "fp8 (e5m2)"),
    **{"tf32": "tf32", "s8": "int8", "u8": "uint8", "i8": "int8", "s32": "int32", "long": "int64", "int": "int32"},
}
LETTERS = {"t": "bf16", "h": "fp16", "s": "fp32", "d": "fp64", "q": "fp8 (e4m3)", "r": "fp8 (e5m2)", "i": "int32"}
ARCHITECTURES = {
    **{"5": "Maxwell", "6": "Pascal", "70": "Volta", "75": "Turing", "80": "Ampere (A100)", "86": "Ampere"},
    **{"89": "Ada", "90": "Hopper", "10": "Blackwell (B200)", "12": "Blackwell (RTX)"},
}
CODENAMES = {"maxwell": "Maxwell", "volta": "Volta", "turing": "Turing", "ampere": "Ampere", "hopper": "Hopper"}


def dtype(text: str) -> str:
    return DTYPES.get(text, text)


def architecture(number: str) -> str:
    """`90` -> Hopper; `100` and `103` begin with 10."""
    found = ARCHITECTURES.get(number) or ARCHITECTURES.get(number[:2]) or ARCHITECTURES.get(number[:1], "")
    return f"written for compute capability {number[:-1]}.{number[-1]}{f', {found}' if found else ''}"


def layout(letters: str) -> str:
    """cuBLAS and CUTLASS count in columns, and PyTorch calls them with the operands exchanged: A is the second one."""
    words = {"n": "row-major", "t": "transposed (as weight.t() is)"}
    b, a = (words[letter] for letter in letters.lower()[:2])
    return f"of mm(a, b): a is {a}, b is {b}"


def cutlass_layout(letters: str) -> str:
    """CUTLASS documents its own operands; what they are in PyTorch is so where cuBLAS calls it."""
    a, b = ({"n": "column", "t": "row"}[letter] for letter in letters)
    return f"A {a}-major, B {b}-major; called through cuBLAS, {layout(letters)}"


def letters(match: re.Match) -> str:
    kinds = [LETTERS.get(letter, letter) for letter in match[1]]
    return f"{kinds[0]} in, {kinds[-2]} accumulation, {kinds[-1]} out"


def instruction(digits: str) -> str:
    """`16816` -> 16x8x16. The digits run together, so known shapes are asked for first."""
    for shape in ("16x8x16", "16x8x8", "16x16x16", "8x8x4", "16x8x32", "16x8x4", "8x8x16", "8x32x16", "32x8x16"):
        if shape.replace("x", "") == digits:
            return shape
    return digits


def gemm(match: re.Match) -> str:
    kind = {"s": "fp32", "d": "fp64", "h": "fp16", "i": "int32", "c": "complex fp32", "z": "complex fp64"}[match[2]]
    if match[3]:
        return f"{instruction(match[3])} tensor-core instruction, {kind} accumulation"
    return f"{kind} accumulation{', by three multiplications (Gauss)' if match[1] else ''}, {PLAIN}"


def xmma(match: re.Match) -> str:
    taken, out, math, accumulate, scale = (dtype(match[i]) for i in range(1, 6))
    as_math = f"multiplied as {math}, " if math != taken else ""
    return f"{taken} in, {as_math}{accumulate} accumulation, {out} out; alpha and beta are {scale}"


def function(name: str) -> str:
    """`CUDAFunctor_add` -> add, `GeluCUDAKernelImpl` -> gelu, `direct_copy_kernel_cuda` -> direct copy."""
    noise = r"^launch_|CUDAFunctor(OnSelf)?_?|[fF]unctor|Ops$|CUDAKernelImpl|_?(cuda_)?kernel(_cuda|_impl)?$"
    return re.sub(noise, "", name).strip("_").replace("_", " ").lower() or name


def igemm(match: re.Match) -> str:
    return {
        "fwd": "convolution, forward",
        "bwd": "convolution, gradient of the input",
        "wrw": "gradient of the weight",
    }[match[1]]


def tensile(match: re.Match) -> str:
    return layout(("n" if match[1] == "ilk" else "t") + ("n" if match[2] == "ljk" else "t"))


def flags(*names: str) -> Callable[[re.Match], str]:
    def says(match: re.Match) -> str:
        on = [name for name, value in zip(names, match.groups(), strict=True) if value == "true"]
        return ", ".join(on) if on else f"none of {', '.join(names)}"

    return says
