"""Each check on a trace that has its thing, and on one that looks alike and has not."""

import contextlib
import gzip
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path

from common import checks_cpu, checks_gpu, checks_profiler, checks_waste, findings, reading
from common.events import Event, Trace
from common.findings import Finding

import msgspec
import pytest
from conftest import H200, ROOT, run

SITUATIONS = ROOT / "tests" / "traces" / "h200"
FOREIGN = ROOT.parent / "shared" / "foreign-traces"
MLP = "03_simple_mlp/64x128x768x3072_bf16_warm_"


def trace(name: str) -> Trace:
    """A lesson's recorded trace, or a situation's."""
    return reading.read(H200 / f"{name}.json.gz" if "/" in name else SITUATIONS / f"{name}.json.gz")


def found(of: Trace, id_: str) -> Finding | None:
    return next((finding for finding in findings.find(of) if finding.id == id_), None)


PAIRS = [
    # id, a trace that has it, one that looks alike, and why that one must not have it
    ("launch-bound", "01_matmul_add/64_bf16_warm_eager", MLP + "eager", "half idle in the profile, never without it"),
    ("compute-bound", MLP + "eager", "pointwise", "busy, with bytes"),
    ("memory-bound", "pointwise", MLP + "compile", "its fused kernel is, the step is not"),
    ("cold-start", "01_matmul_add/64_bf16_cold_eager", "01_matmul_add/64_bf16_warm_eager", "warm, and still the first step is 2.4 times as long"),
    ("hidden-copy", "01_matmul_add/4096_bf16_warm_compile", "clone", "asked for"),
    ("hidden-copy", "attention_naive", "attention_inplace", "in place"),
    ("hidden-copy", "convolution", "reductions", "cat and to copy because they are asked to"),
    ("occupancy-queries", "01_matmul_add/64_bf16_cold_eager_s0-0-20", "tf32", "cudaFuncGetAttributes asks something else"),
    ("memset-before-gemm", MLP + "eager", "reductions", "memsets, in front of reductions"),
    ("memset-before-gemm", "attention_inplace", "zeros", "zeros that the program asks for, in front of a GEMM"),
    ("profiler-buffer", "01_matmul_add/64_bf16_warm_eager_s0-0-20", "01_matmul_add/64_bf16_warm_eager", "a gap as long, without a request"),
    ("final-synchronize", "01_matmul_add/4096_bf16_warm_eager_s0-0-20", "01_matmul_add/64_bf16_warm_eager", "a short one"),
    ("variance", "cold_cache", MLP + "eager", "two kernels of one name, evenly long"),
    ("metadata-ops", MLP + "eager", MLP + "compile", "gone"),
    ("compiled-region", MLP + "compile", MLP + "eager", "not compiled"),
    ("recompilation", "recompile", "regions", "two regions and a graph break, all of it compiled before"),
    ("hotspot", "01_matmul_add/4096_bf16_warm_eager", "reductions", "the longest of many takes a fourth"),
    ("synchronize", "item", "sdpa_math", "only the one behind the last step"),
    ("tiny-launches", "tiny", "large", "as many launches, with work"),
    ("graph-replay", MLP + "compile-max-autotune", "sdpa_cudnn", "asks whether a graph is being captured, and none is"),
    ("tensor-cores-unused", "fp32", "tf32", "fp32 tensors, on the tensor cores"),
    ("tensor-cores-unused", "sdpa_math", "sdpa_efficient", "in bf16"),
    ("round-trip", MLP + "eager", "unrelated", "elementwise kernels in a row, of shapes that do not fit"),
    ("round-trip", "pointwise", MLP + "compile", "fused"),
    ("zero-occupancy", MLP + "eager", "01_matmul_add/64_bf16_warm_eager", "as much shared memory, but a grid so small that 0 is about true"),
    ("overlap", "streams", "pointwise", "one behind the other"),
]  # fmt: skip


@pytest.mark.parametrize(("id_", "has", "alike", "why"), PAIRS, ids=[f"{p[0]}-{p[1].split('/')[-1]}" for p in PAIRS])
def test_a_check_finds_its_thing_and_not_what_looks_like_it(id_, has, alike, why):
    finding = found(trace(has), id_)
    assert finding and finding.evidence and 0 <= finding.at_stake_us < math.inf
    assert found(trace(alike), id_) is None, why


def edited(name: str, edit: Callable[[Event], bool | None]) -> Trace:
    """A recorded trace without the events for which `edit` returns False."""
    of = trace(name)
    for category, group in of.groups.items():
        of.groups[category] = [event for event in group if edit(event) is not False]
    return of


def test_lost_kernels_come_first_and_kernels_from_before_are_not_lost():
    lost = edited(MLP + "eager", lambda event: "Gelu" not in event.name)
    first = findings.find(lost)[0]
    assert first.id == "lost-events" and "3 of 21 launches (cudaLaunchKernel)" in first.says
    assert found(trace("large"), "lost-events") is None  # 87 kernels of its warm-up, whose launches are not in the file


def test_lost_memsets_alone_are_no_reason_for_alarm():
    of = edited(MLP + "eager", lambda event: event.name != "Memset (Device)")
    assert found(of, "lost-events").at_stake_us == 0 and findings.find(of)[0].id != "lost-events"


def test_a_buffer_request_while_the_gpu_works_is_no_gap():
    def during_work(event: Event) -> None:
        if "Buffer Request" in event.name:
            event.ts, event.dur = busy.ts + 10, 100.0

    busy = next(e for e in trace("01_matmul_add/4096_bf16_warm_eager_s0-0-20").groups["kernel"] if "nvjet" in e.name)
    assert found(edited("01_matmul_add/4096_bf16_warm_eager_s0-0-20", during_work), "profiler-buffer") is None
    assert found(trace("01_matmul_add/4096_bf16_warm_eager_s0-0-20"), "profiler-buffer")


def test_fp32_that_was_asked_for_is_no_mistake():
    of = trace("fp32")
    of.lesson = {"settings": {"dtype": "fp32"}}
    assert found(of, "tensor-cores-unused") is None


def test_queries_at_every_step_are_told_from_those_of_the_first():
    assert "in 1 of 20 steps" in found(trace("01_matmul_add/64_bf16_cold_eager_s0-0-20"), "occupancy-queries").says
    assert "inside aten::topk, in 3 of 3 steps" in found(trace("reductions"), "occupancy-queries").says


def test_a_cold_trace_of_unknown_origin_is_known_by_what_it_loads():
    of = trace("01_matmul_add/64_bf16_cold_eager_s0-0-20")
    of.lesson = {}
    assert found(of, "cold-start")
    without = edited("01_matmul_add/64_bf16_warm_eager_s0-0-20", lambda event: True)
    without.lesson = {}
    assert found(without, "cold-start") is None  # a first step 39 times as long, all of it the profiler's buffer


def test_the_dead_window_is_where_the_first_step_waits():
    says = found(trace("01_matmul_add/64_bf16_cold_eager"), "cold-start").says
    assert "a dead window of 101.0 us between aten::mm and cuLaunchKernelEx" in says


def test_a_round_trip_says_how_many_bytes():
    finding = found(trace(MLP + "eager"), "round-trip")
    assert "aten::gelu to aten::mul, 50.33 MB" in finding.says and "100.7 MB a step" in finding.says
    assert [e.name.split("<")[0] for e in finding.evidence] == ["void at::native::vectorized_elementwise_kernel"] * 2
    # the limit that was measured in that run: 100.66 MB at 4,152 GB/s
    assert finding.saves_us == pytest.approx(2 * 8192 * 3072 * 2 / 4152.4 / 1e3, rel=0.01)


def test_on_the_cpu_what_the_gpu_hides_costs_nothing():
    assert found(trace(MLP + "eager"), "metadata-ops").saves_us == 0
    assert found(trace("01_matmul_add/64x64x64_bf16_warm_eager"), "metadata-ops").saves_us > 0


@pytest.mark.parametrize(
    "name", ["sdpa_math", "attention_naive", "convolution", "01_matmul_add/4096_bf16_warm_compile"]
)
def test_a_hidden_copy_names_its_op_and_what_to_try(name):
    advice = {
        "sdpa_math": ("aten::_scaled_dot_product_attention_math", "The other backends do not"),
        "attention_naive": ("aten::masked_fill", "in-place"),
        "convolution": ("aten::cudnn_convolution", "channels_last"),
        "01_matmul_add/4096_bf16_warm_compile": ("aten::addmm", "the bias is copied there first"),
    }
    says = found(trace(name), "hidden-copy").says
    assert all(words in says for words in advice[name])


def test_findings_are_in_the_order_of_the_time_at_stake_and_point_into_the_trace():
    for path in [*H200.rglob("*.json.gz"), *SITUATIONS.glob("*.json.gz")]:
        of = reading.read(path)
        events_ = {id(event) for group in of.groups.values() for event in group}
        list_ = findings.find(of)
        assert [f.at_stake_us for f in list_] == sorted((f.at_stake_us for f in list_), reverse=True)
        for finding in list_:
            assert all(id(event) in events_ for event in finding.evidence) and 1 <= len(finding.evidence) <= 3
            assert finding.saves_us is None or 0 <= finding.saves_us <= max(of_span(of), finding.at_stake_us)
            assert len(finding.says) < 420, finding.id


def of_span(of: Trace) -> float:
    every = [event for group in of.groups.values() for event in group]
    return max(event.end for event in every) - min(event.ts for event in every)


def test_every_check_is_in_the_page_and_the_page_has_no_other():
    page = (ROOT / "common" / "findings.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", page, re.M))
    made = set()
    for module in (checks_cpu, checks_gpu, checks_profiler, checks_waste):
        made |= set(re.findall(r'Finding\(\s*f?"([a-z{}-]+)"', Path(module.__file__).read_text()))
    made = (made - {"{kind}-bound"}) | {"compute-bound", "memory-bound"}
    assert listed == made
    tested = {pair[0] for pair in PAIRS} | {"lost-events"}
    assert tested == made


@pytest.mark.skipif(not FOREIGN.exists(), reason="other people's traces are not here")
def test_foreign_traces_have_the_findings_that_their_owners_want():
    ids = {p.name.split(".")[0]: [f.id for f in findings.find(reading.read(p))] for p in FOREIGN.glob("*.json.gz")}
    assert ids["a100-alexnet"][:2] == ["cold-start", "hotspot"] and "tensor-cores-unused" in ids["a100-alexnet"]
    assert ids["a100-simple-add"] == ["cold-start"]
    assert ids["graph-replay-decode"] == ["hotspot", "graph-replay"]
    assert ids["h100-bert-small"][:2] == ["launch-bound", "tiny-launches"]
    assert ids["mi300x-compile-triton"][0] == "compute-bound"
    assert ids["cpu-only"] == []


@pytest.mark.parametrize("path", sorted((ROOT.parent / "shared" / "bad-traces").glob("*.json*")), ids=lambda p: p.name)
def test_broken_traces_have_findings_or_one_line(path):
    done = run("-m", "common", "explain", path)
    assert "Traceback" not in done.stderr and done.returncode in (0, 1)


def test_odd_values_are_no_error():
    of = trace(MLP + "eager")
    for event in of.groups["kernel"]:
        event.args.shared_memory, event.args.occupancy, event.args.warps = "N/A", 0, "inf"
    of.devices = [{"maxThreadsPerMultiprocessor": "many"}]
    of.lesson = {"settings": "none", "unprofiled_us": "fast"}
    assert findings.find(of)


def test_the_verb_prints_evidence_and_json():
    path = H200 / f"{MLP}eager.json.gz"
    out = run("-m", "common", "explain", path).stdout
    assert out.startswith(
        "1. Round trip through memory (by shapes and order, for a trace names no tensors): aten::gelu"
    )
    assert "   vectorized_elementwise_kernel<8, GeluCUDAKernelImpl> at 1.364 ms, 31.9 us\n" in out
    data = json.loads(run("-m", "common", "explain", path, "--json").stdout)
    assert set(data["findings"][0]) == {"id", "says", "evidence", "saves_us"}
    assert set(data["findings"][0]["evidence"][0]) == {"name", "ts", "dur"}


def test_nothing_to_say_is_said():
    assert run("-m", "common", "explain", SITUATIONS / "nothing.json").returncode == 1
    of = edited("clone", lambda event: False)
    assert findings.find(of) == []


def made(ops: list, steps: int = 1) -> Trace:
    """A small trace by hand, for what no recording has: steps of 1000 us, with `ops` in each of (name, launch, GPU events).

    GPU events: (name, start in the step, duration, stream), of the op's launch.
    """
    rows: list[dict] = []
    number = 0
    for step in range(steps):
        start = 1000.0 + 1000 * step
        rows.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "pid": 1,
                "tid": 1,
                "ts": start,
                "dur": 900,
            }
        )
        for i, (name, launch, args, *gpu) in enumerate(ops):
            at = start + 10 + 50 * i
            rows.append(
                {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 40, "args": args}
            )
            for j, (kernel, offset, dur, stream) in enumerate(gpu):
                number += 1
                category = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
                rows.append(
                    {
                        "ph": "X",
                        "cat": "cuda_runtime",
                        "name": launch,
                        "pid": 1,
                        "tid": 1,
                        "ts": at + 1 + 3 * j,
                        "dur": 2,
                        "args": {"correlation": number},
                    }
                )
                rows.append(
                    {
                        "ph": "X",
                        "cat": category,
                        "name": kernel,
                        "pid": 0,
                        "tid": stream,
                        "ts": start + offset,
                        "dur": dur,
                        "args": {"correlation": number, "device": 0},
                    }
                )
    of = Trace()
    of.add([msgspec.json.decode(json.dumps(row), type=Event, strict=False) for row in rows])
    return of


def test_copies_of_several_shapes_are_counted_once():
    ops = [("aten::addmm", "cudaMemcpyAsync", {"Input Dims": [[n], [n, n], [n, n]], "Input type": ["float"] * 3}, ("Memcpy DtoD (Device -> Device)", 10.0 * n, 10, 7)) for n in (8, 16, 32)]  # fmt: skip
    assert found(made(ops=ops), "hidden-copy").saves_us == pytest.approx(30)


def test_a_copy_beside_a_kernel_is_no_overlap_of_kernels():
    ops = [("aten::mm", "cudaLaunchKernel", {}, ("sgemm_kernel", 100, 500, 7)), ("aten::to", "cudaMemcpyAsync", {}, ("Memcpy HtoD (Pinned -> Device)", 200, 100, 8))]  # fmt: skip
    assert found(made(ops=ops), "overlap") is None


def test_a_reshape_that_copies_is_no_metadata():
    ops = [("aten::reshape", "cudaLaunchKernel", {}, ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel>", 100, 30, 7))] * 5  # fmt: skip
    assert found(made(ops=ops), "metadata-ops") is None


def test_fp64_on_the_ordinary_cores_is_not_called_fp32():
    ops = [("aten::mm", "cudaLaunchKernel", {}, ("volta_dgemm_128x64_nn", 100, 500, 7))]
    assert found(made(ops=ops), "tensor-cores-unused") is None
    ops = [("aten::mm", "cudaLaunchKernel", {}, ("volta_sgemm_128x64_nn", 100, 500, 7))]
    assert found(made(ops=ops), "tensor-cores-unused")


def test_all_kernels_lost_is_said():
    of = edited(MLP + "eager", lambda event: event.cat not in ("kernel", "gpu_memset"))
    assert findings.find(of)[0].id == "lost-events"


@pytest.mark.parametrize(
    "lesson",
    [
        {"work": [1]}, {"work": None}, {"work": [{"family": "gemm", "flops": "x", "bytes": []}]}, {"unprofiled_us": 10**400},
        {"ceilings": {"gemm_tflops": "fast", "copy_gbps": {}}, "settings": {"dtype": "bf16"}}, {"ceilings": [1]}, {"settings": 3},
        {"work": [{"family": "gemm", "flops": 10**400, "bytes": 1}]},
    ],
)  # fmt: skip
def test_an_edited_lesson_object_is_read_as_far_as_it_goes(lesson, tmp_path):
    data = json.loads(gzip.decompress((H200 / f"{MLP}eager.json.gz").read_bytes()))
    data["lesson"] |= lesson
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(data))
    for verb in ("show", "explain"):
        done = run("-m", "common", verb, path)
        assert (done.returncode, done.stderr) == (0, "")


def test_mutated_traces_have_findings_with_evidence_and_no_error():
    """Events dropped, doubled and moved, and arguments of every kind, in traces that were recorded."""
    rng = random.Random(0)
    odd = [None, -1, 0, 1e300, "N/A", "nan", [], {}, [[1], ["a"]], 10**400, True, [[8], [8, [8]]]]
    for path in sorted([*SITUATIONS.glob("*.json.gz"), *H200.rglob("*.json.gz")]):
        if path.stat().st_size > 20_000:
            continue
        events_ = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        for _ in range(6):
            rows = [dict(e) for e in events_ if e.get("ph") == "X" and rng.random() > 0.1]
            for row in rng.sample(rows, min(20, len(rows))):
                row["args"] = {
                    key: rng.choice(odd) if rng.random() < 0.3 else value for key, value in row.get("args", {}).items()
                }
                row["ts"] += rng.choice((0, 0, -500.0, 1e6))
                row["dur"] = rng.choice((row["dur"], 0, 5e5))
            of = Trace()
            for row in rows:
                with contextlib.suppress(msgspec.MsgspecError):
                    of.add([msgspec.json.decode(json.dumps(row), type=Event, strict=False)])
            for finding in findings.find(of):
                assert finding.evidence and (finding.saves_us is None or 0 <= finding.saves_us < math.inf), finding
