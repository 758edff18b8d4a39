"""What --json holds, and what of it the terminal says too. Times are microseconds; what is not known is null."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import compare, names, roofline, work
from common.compare import Side
from common.decode import Decoded
from common.events import Trace
from common.findings import Finding
from common.work import Steps


def set_aside(trace: Trace, steps: Steps) -> list[tuple[str, int, str]]:
    """(what, count, where the first is) of all that is not in the table."""
    rows = [(one.what, one.count, one.where) for one in trace.set_aside]
    if steps.unlaunched:
        what = "GPU events with no launch in this file, launched before the recording began or lost"
        rows.append((what, len(steps.unlaunched), names.short(steps.unlaunched[0].name)))
    if steps.lost:
        rows.append(("launches with no GPU event in this file: lost", len(steps.lost), steps.lost[0].name))
    return rows


def device_name(trace: Trace, gpu: Any = None) -> str | None:
    """Of that GPU, or of the first."""
    found = [device.get("name") for device in trace.devices if gpu is None or device.get("id") == gpu]
    return trace.lesson.get("device") or (found[0] if found else None)


def show(paths: list[Path], traces: list[Trace]) -> dict[str, Any] | list[dict[str, Any]]:
    """`show --json`: an object, or a list of one for each GPU. Times are microseconds; what is not known is null."""
    gpus = work.devices(traces[0])
    found = [_show(paths[0], traces[0], gpu) for gpu in (gpus if len(gpus) > 1 else [None])]
    return found if len(found) > 1 else found[0]


def _show(path: Path, trace: Trace, gpu: Any) -> dict[str, Any]:
    steps = work.per_step(trace, gpu)
    limits = roofline.peaks(trace)
    kernels = []
    for row, roof in zip(steps.rows, roofline.roofs(trace, steps), strict=True):
        kernels.append(
            {"name": row.name, "short": names.short(row.name), "family": row.family, "origin": row.origin}
            | {"op": row.op, "dims": row.dims, "per_step": row.per_step, "calls": len(row.times)}
            | {"median_us": row.median_us, "min_us": min(row.times), "max_us": max(row.times)}
            | {"total_us": sum(row.times), "flops": roof.flops, "bytes": roof.bytes, "at_least": roof.at_least}
            | {"tflops": roof.tflops, "gbps": roof.gbps, "bound": roof.bound}
            | {"ideal_us": roof.ideal_us, "of_ideal": roof.of_ideal}
        )
    return {
        "file": str(path),
        "device": device_name(trace, gpu),
        "steps": steps.numbers,
        "peaks": {"tflops": limits.half or limits.single, "gbps": limits.gbps, "source": limits.source},
        "per_step": {"kernels": steps.kernels, "copies": steps.copies, "memsets": steps.memsets}
        | {"gpu_busy_us": steps.busy_us, "span_us": steps.span_us},
        "kernels": kernels,
        "set_aside": [dict(zip(("what", "count", "where"), row, strict=True)) for row in set_aside(trace, steps)],
    }


def decoded(found: list[Decoded]) -> list[dict[str, Any]]:
    """`decode --json`: a list of names, each with its parts."""
    return [
        {"name": one.name, "family": one.family, "origin": one.origin, "form": one.form, "whole": one.whole}
        | {"rest": one.rest, "parts": [asdict(part) | {"documented": bool(part.source)} for part in one.parts]}
        for one in found
    ]


def explained(path: Path, found: list[Finding]) -> dict[str, Any]:
    """`explain --json`. Microseconds, `ts` as in the file; saves_us is of a step, null if unknown."""
    rows = [
        {"id": one.id, "says": one.says, "saves_us": one.saves_us}
        | {"evidence": [{"name": event.name, "ts": event.ts, "dur": event.dur} for event in one.evidence]}
        for one in found
    ]
    return {"file": str(path), "findings": rows}


def compared(paths: list[Path], traces: list[Trace]) -> dict[str, Any]:
    """`compare --json`: a comparison of the first file with each of the others. Times are microseconds."""
    sides = [compare.side(trace) for trace in traces]

    def one(path: Path, trace: Trace, other: Side) -> dict[str, Any]:
        rows = [
            {"verdict": pair.verdict, "a": [call.row.name for call in pair.a], "b": [call.row.name for call in pair.b]}
            | {"a_us": pair.a_us, "b_us": pair.b_us, "note": pair.note}
            for pair in compare.pairs(sides[0], other)
        ]
        return {"a": str(paths[0]), "b": str(path), "warnings": compare.warnings(traces[0], trace), "rows": rows}

    per_step = [
        {"file": str(path), "gpu_operations": side.launches, "kernels": side.steps.kernels}
        | {"gpu_busy_us": side.steps.busy_us, "cpu_us": side.steps.cpu_us, "unprofiled_us": side.unprofiled_us}
        | {
            "bytes": side.bytes,
            "bytes_unknown_for": side.unknown,
            "metadata_ops": side.idle,
            "metadata_us": side.idle_us,
        }
        for path, side in zip(paths, sides, strict=True)
    ]
    found = [one(*args) for args in zip(paths[1:], traces[1:], sides[1:], strict=True)]
    return {"comparisons": found, "per_step": per_step} if len(found) > 1 else {**found[0], "per_step": per_step}
