"""FLOPs and bytes of a kernel from the shapes, dtypes and strides of the op that launched it, as far as they tell."""

from dataclasses import dataclass
from math import prod
from typing import Any

from common import names
from common.work import Row

SIZES = {
    **dict.fromkeys(("double", "long", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short"), 2),
    **dict.fromkeys(("unsigned char", "signed char", "bool", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
}  # bytes of an element, by the names that record_shapes writes
UNARY = frozenset(
    ("gelu", "relu", "silu", "sigmoid", "tanh", "exp", "log", "neg", "abs", "sqrt", "rsqrt", "sin", "cos", "_softmax")
)
BINARY = frozenset(["add", "sub", "mul", "div", "maximum", "minimum", "pow"])
FILLS = frozenset(["fill_", "zero_", "uniform_", "normal_"])


@dataclass
class Roof:
    """One row against the limits. `ideal_us` is the larger of FLOPs and bytes over their peaks."""

    flops: int | None = None
    bytes: int | None = None
    at_least: bool = False  # the bytes are a lower bound
    tflops: float | None = None
    gbps: float | None = None
    bound: str | None = None  # compute, memory or latency
    ideal_us: float | None = None
    of_ideal: float | None = None  # above 1: the data stayed in the cache, or the measured ceiling was modest
    note: str = ""


def roof(row: Row) -> Roof:
    if row.moved is not None:  # the profiler records what the driver's copies and memsets move
        inside = "DtoD" in row.name or "Device -> Device" in row.name
        if row.family == names.COPY and not inside:
            return Roof(bytes=row.moved, note="to or from the host: the bus is its limit")
        return Roof(bytes=row.moved * 2 if inside else row.moved)
    if row.family == names.MEMSET or (row.family == names.COPY and not row.op.startswith("aten::")):
        return Roof()
    sizes = [_bytes(*tensor) for tensor in row.inputs]
    op = row.op.removeprefix("aten::")
    if op in ATTENTION:
        return _attention(op, row, sizes)
    if row.family == names.GEMM:
        return _gemm(op, row, sizes)
    if row.op.startswith("aten::") and sizes and None not in sizes:
        return _other(op, row, [size or 0 for size in sizes])
    known = sum(size for size in sizes if size)
    return Roof(bytes=known, at_least=True) if known else Roof()


def _gemm(op: str, row: Row, sizes: list[int | None]) -> Roof:
    """2 M N K; a bias adds bytes and no FLOPs. Other ops than these, convolutions among them, stay blank."""
    first = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "linear": 0}.get(op)
    if first is None or len(sizes) < first + 2 or None in sizes[: first + 2]:
        return Roof()
    a, b = row.dims[first], row.dims[first + 1]
    outputs = prod(a[:-1]) * ((b[-2] if len(b) > 1 else 1) if op == "linear" else b[-1])
    read = sum(size or 0 for size in sizes[: first + 2])
    return Roof(2 * outputs * a[-1], read + outputs * SIZES[row.inputs[first][1]])


# where q's sequence is in its shape, and which argument says causal, of the ops around an attention kernel
ATTENTION = {
    "_flash_attention_forward": (1, 8),
    "_efficient_attention_forward": (1, 9),
    "_cudnn_attention_forward": (2, 10),
    "_scaled_dot_product_flash_attention": (2, 4),
    "_scaled_dot_product_efficient_attention": (2, 6),
    "_scaled_dot_product_cudnn_attention": (2, 6),
}


def _attention(op: str, row: Row, sizes: list[int | None]) -> Roof:
    """q k^T and its product with v: 2 B H S T (D + Dv), half of it where the mask is causal and S = T."""
    at, causal_at = ATTENTION[op]
    if len(sizes) < 3 or None in sizes[:3] or any(len(shape) != 4 for shape in row.dims[:3]):
        return Roof()
    q, k, v = row.dims[:3]
    causal = row.concrete[causal_at] if len(row.concrete) > causal_at else None
    if causal is None:
        return Roof(bytes=sum(size or 0 for size in sizes[:3]), at_least=True)
    flops = 2 * prod(q[:3]) * k[at] * (q[3] + v[3])
    masked = causal not in ("False", "0", "") and q[at] == k[at]
    out = prod(q[:3]) * v[3] * SIZES[row.inputs[0][1]]
    size = sum(size or 0 for size in sizes[:3]) + out
    return Roof(flops // 2 if masked else flops, size, note="causal: half the square" if masked else "")


def _other(op: str, row: Row, sizes: list[int]) -> Roof:
    """Bytes alone: what an element costs in FLOPs is a matter of taste, so only a lesson states it."""
    kinds = [kind for _, kind, _ in row.inputs]
    plain = op.removesuffix("_")
    if plain in UNARY:
        return Roof(bytes=2 * sizes[0])
    if plain in BINARY and len(sizes) <= 2:
        longest = max(len(shape) for shape in row.dims)
        out = prod(max(axis) for axis in zip(*([1] * (longest - len(d)) + d for d in row.dims), strict=True))
        return Roof(bytes=sum(sizes) + out * max(SIZES[kind] for kind in kinds))
    if op == "copy_" and len(sizes) == 2:
        return Roof(bytes=prod(row.dims[0]) * SIZES[kinds[0]] + sizes[1])
    if op in FILLS:
        return Roof(bytes=sizes[0])
    whole = row.family in (names.ELEMENTWISE, names.REDUCTION)  # these read all of their inputs; a gather does not
    return Roof(bytes=sum(sizes), at_least=True) if whole else Roof()


def _bytes(shape: Any, kind: Any, strides: Any) -> int | None:
    """Of a tensor's distinct elements: an axis of stride 0 repeats the same ones, and a view's rows may overlap."""
    if kind not in SIZES or not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        return None
    count = prod(shape)
    if count and isinstance(strides, list) and len(strides) == len(shape) and all(isinstance(s, int) for s in strides):
        axes = list(zip(shape, strides, strict=True))
        count = min(prod(n for n, stride in axes if stride), 1 + sum((n - 1) * abs(stride) for n, stride in axes))
    return count * SIZES[kind]
