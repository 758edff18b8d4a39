"""Checks of work on the GPU that need not be there: copies, round trips, memsets, the wrong cores."""

from math import prod

from common import names, roofline
from common.checks_cpu import recompilation
from common.decode import decode
from common.events import Event
from common.findings import WORTH, Check, Finding, Seen, longest
from common.shapes import FILLS, SIZES
from common.tables import plural, scaled, us
from common.vocabulary import PLAIN
from common.work import Row

COPYING = "copy_ clone contiguous to _to_copy type_as cat concat concatenate stack hstack vstack dstack column_stack"
COPYING += " repeat repeat_interleave tile roll index index_select"
ASKED = frozenset(f"aten::{name}" for name in COPYING.split())  # ops that a program calls in order to copy
COPIES = (  # part of an op's name, why it copies and what to try
    (
        "addmm",
        "the GEMM adds to what its output holds, so the bias is copied there first. A bias of one dimension can be"
        " added in the GEMM's epilogue instead",
    ),
    ("convolution", "the convolution wants another layout. Tensors in torch.channels_last save the moves"),
    ("attention_math", "SDPA's math backend works in fp32 and copies to it and back. The other backends do not"),
    ("", "the op works on a copy. Where no gradient needs the old values, its in-place form (masked_fill_) saves it"),
)


def hidden_copy(seen: Seen) -> Finding | None:
    """A copy on the GPU inside an op that is not called to copy."""
    found: dict[str, list[Event]] = {}
    for row in seen.steps.rows:
        if row.family != names.COPY or any(where in row.name for where in ("Host", "Pageable", "Pinned")):
            continue
        for item in row.items:
            ops = [op.name for op in (item.op, *seen.ancestors(item.op)) if op]
            owner = next((op for op in ops if op.startswith("aten::") and op not in ASKED), None)
            if not ops and row.origin in ("cuDNN", "MIOpen"):
                owner = "a convolution (by the kernel's name)"
            if owner and "_foreach_" not in owner:
                found.setdefault(owner, []).append(item.event)
    took = sum(event.dur for events in found.values() for event in events) / seen.n
    if took < WORTH * seen.steps.busy_us or not found:
        return None
    owner = max(found, key=lambda owner: sum(event.dur for event in found[owner]))
    why = next(why for part, why in COPIES if part in owner)
    if owner in names.VIEWS:
        why = "its strides allow no view. Keep the layout, or make the copy once"
    others = f" (and {', '.join(other for other in found if other != owner)})" if len(found) > 1 else ""
    text = f"Hidden copy: {owner}{others} copies on the GPU, {us(took)} us a step: {why}."
    return Finding("hidden-copy", text, longest(found[owner]), took, took)


def memset_before_gemm(seen: Seen) -> Finding | None:
    gemms = {row.op for row in seen.steps.rows if row.family == names.GEMM and row.op}
    rows = [row for row in seen.steps.rows if row.family == names.MEMSET and row.op in gemms]
    if not rows:
        return None
    sizes = " and ".join(scaled(size, "B") for size in sorted({row.moved for row in rows if row.moved is not None}))
    calls = plural(sum(row.per_step for row in rows), "memset")
    text = (
        f"Memset in front of a GEMM: {calls}{f' of {sizes}' if sizes else ''} a step inside"
        f" {', '.join(sorted({row.op for row in rows}))}, {us(seen.steps.total_us(rows))} us. The library clears a"
        " workspace of its own: part of the GEMM's price, and not yours to remove."
    )
    return Finding("memset-before-gemm", text, longest(i.event for row in rows for i in row.items), 0.0)


def tensor_cores_unused(seen: Seen) -> Finding | None:
    settings = seen.trace.lesson.get("settings")
    if isinstance(settings, dict) and settings.get("dtype") == "fp32":
        return None  # asked for
    rows = [
        row for row in seen.steps.rows
        if row.family in (names.GEMM, names.ATTENTION) and row.share >= WORTH
        and _is_plain_fp32(row)
    ]  # fmt: skip
    if not rows:
        return None
    items = [item for row in rows for item in row.items]
    why = "Use bf16 (autocast), or let fp32 be multiplied as tf32 (torch.set_float32_matmul_precision('high'))."
    if any("attention_math" in op.name for item in items for op in seen.ancestors(item.launch)):
        why = "SDPA's math backend computes in fp32: let it choose flash, efficient or cuDNN."
    text = (
        f"Tensor cores unused: {names.short(rows[0].name)} multiplies fp32 on the ordinary cores,"
        f" {us(seen.steps.total_us(rows))} us a step. {why}"
    )
    return Finding("tensor-cores-unused", text, longest(item.event for item in items), seen.steps.total_us(rows))


def _is_plain_fp32(row: Row) -> bool:
    says = [part.says for part in decode(row.name).parts]
    return any(PLAIN in said for said in says) and not any(kind in said for kind in ("fp64", "int32") for said in says)


def round_trip(seen: Seen) -> Finding | None:
    """Elementwise kernels in a row of which the second may read what the first wrote: by shapes and order alone."""
    order = [seen.steps.rows[i] for i in seen.steps.order if seen.steps.rows[i].family != names.MEMSET]
    pairs = [(a, b, size) for a, b in zip(order, order[1:], strict=False) if (size := _passed_on(a, b))]
    gbps = roofline.peaks(seen.trace).gbps or max((roof.gbps or 0.0 for roof in seen.roofs), default=0.0)
    moved = sum(2 * size for _, _, size in pairs)
    took = moved / gbps / 1e3 if gbps else 0.0
    if took < max(1.0, WORTH * seen.steps.busy_us) or recompilation(seen):
        return None
    pairs.sort(key=lambda pair: -pair[2])
    what = "; ".join(dict.fromkeys(f"{a.op} to {b.op}, {scaled(size, 'B')}" for a, b, size in pairs[:3]))
    text = (
        f"Round trip through memory (by shapes and order, for a trace names no tensors): {what}. What one kernel"
        f" writes the next reads back, {scaled(moved, 'B')} a step, {us(took)} us at the memory limit. One fused"
        " kernel (torch.compile, or your own) keeps it in registers."
    )
    first, second = pairs[0][:2]
    evidence = [first.items[-1].event, second.items[-1].event]
    if first is second:
        evidence = [item.event for item in first.items[-2:]]
    return Finding("round-trip", text, evidence, took, took)


def _passed_on(a: Row, b: Row) -> int:
    """Bytes of what elementwise kernel `a` writes, if a tensor of its size is among b's inputs; else 0."""
    if a.family != names.ELEMENTWISE or b.family not in (names.ELEMENTWISE, names.REDUCTION):
        return 0
    if not (a.op.startswith("aten::") and b.op.startswith("aten::")) or b.op.removeprefix("aten::") in FILLS:
        return 0
    written = max(((_elements(shape), kind or "") for shape, kind, _ in a.inputs), default=(0, ""))
    read = [(_elements(shape), kind) for shape, kind, _ in b.inputs]
    return written[0] * SIZES.get(written[1], 0) if written in read else 0


def _elements(shape: list) -> int:
    """0 for a list of tensors."""
    return prod(n if isinstance(n, int) else 0 for n in shape) if isinstance(shape, list) else 0


CHECKS: tuple[Check, ...] = (hidden_copy, memset_before_gemm, tensor_cores_unused, round_trip)
