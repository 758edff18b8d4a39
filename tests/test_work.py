"""The kernel table: which step, which op and which row every GPU event belongs to."""

from pathlib import Path

from common import events, reading, work
from common.events import Args, Event, Trace

import msgspec
import pytest
from conftest import H200, ROOT

FOREIGN = ROOT.parent / "shared" / "foreign-traces"
BAD = ROOT.parent / "shared" / "bad-traces"


def steps_of(config: str) -> work.Steps:
    return work.per_step(reading.read(H200 / f"{config}.json.gz"))


def table(steps: work.Steps) -> list[tuple]:
    return [(row.family, row.origin, row.op, row.per_step) for row in steps.rows]


MLP = "03_simple_mlp/64x128x768x3072_bf16_warm_"


@pytest.mark.parametrize(
    ("config", "kernels", "copies", "memsets"),
    [
        (MLP + "eager", 5, 0, 2),
        (MLP + "compile", 4, 0, 2),
        (MLP + "compile-max-autotune", 5, 0, 0),
        ("04_liger_mlp/64x128x768x3072_bf16_warm_liger-package", 4, 0, 2),
        ("02_linear/1024x32x64_bf16_warm_eager", 1, 0, 0),
        ("02_linear/1024x32x64_bf16_warm_compile", 1, 0, 0),
        ("01_matmul_add/64_bf16_cold_eager", 2, 0, 0),
        ("01_matmul_add/64_bf16_warm_compile", 1, 1, 0),
        ("01_matmul_add/4096_bf16_warm_compile", 1, 1, 1),
    ],
)
def test_events_of_a_recorded_step(config, kernels, copies, memsets):
    steps = steps_of(config)
    assert (steps.kernels, steps.copies, steps.memsets) == (kernels, copies, memsets)
    assert steps.numbers == [2, 3, 4] and not steps.lost and not steps.unlaunched
    assert all(row.per_step == int(row.per_step) for row in steps.rows), "every event is in its own step"
    assert sum(row.per_step for row in steps.rows) == kernels + copies + memsets
    assert abs(sum(row.share for row in steps.rows) - 1) < 1e-9
    assert 0 < steps.busy_us <= steps.span_us


def test_the_eager_mlp_reads_like_its_program():
    assert table(steps_of(MLP + "eager")) == [
        ("memset", "driver", "aten::mm", 2),
        ("gemm", "cuBLAS", "aten::mm", 2),
        ("elementwise", "ATen", "aten::gelu", 1),
        ("elementwise", "ATen", "aten::mul", 1),
        ("gemm", "cuBLAS", "aten::mm", 1),
    ]
    assert steps_of(MLP + "eager").rows[1].dims == [[8192, 768], [768, 3072]]


def test_a_graphs_kernels_belong_to_the_launch_that_replays_them():
    ops = {row.op for row in steps_of(MLP + "compile-max-autotune").rows}
    assert ops == {"aten::_foreach_copy_", "cudaGraphLaunch"}


def test_steps_that_queue_on_the_gpu_are_not_charged_for_the_wait():
    steps = steps_of("01_matmul_add/4096_bf16_warm_eager_s0-0-20")
    assert len(steps.numbers) == 20 and steps.busy_us / steps.span_us > 0.9


def x(
    cat: str, name: str, ts: float, dur: float, id_: int | None = None, dims: list | None = None, tid: int = 1
) -> Event:
    args = Args(correlation=id_, dims=msgspec.Raw(msgspec.json.encode(dims or [])))
    return Event(ph="X", cat=cat, name=name, pid=1, tid=tid, ts=ts, dur=dur, args=args)


def two_steps(*extra: Event) -> work.Steps:
    """Two steps of 100 us; the kernel of the first runs while the second is on the CPU."""
    return work.per_step(
        Trace(
            [
                x("user_annotation", "ProfilerStep#1", 0, 100),
                x("user_annotation", "ProfilerStep#2", 100, 100),
                x("cpu_op", "aten::linear", 10, 60),
                x("cpu_op", "aten::mm", 20, 40, dims=[[2, 3], [3, 4], []]),
                x("cuda_runtime", "cudaLaunchKernel", 30, 5, 7),
                x("kernel", "nvjet_x", 150, 20, 7, tid=9),
                x("cuda_runtime", "cudaLaunchKernel", 120, 5, 8),
                x("kernel", "nvjet_x", 170, 90, 8, tid=9),
                *extra,
            ]
        )
    )


def test_a_kernel_counts_to_the_step_and_op_that_launched_it():
    steps = two_steps()
    first, second = steps.rows
    assert (first.op, first.dims, first.per_step) == ("aten::mm", [[2, 3], [3, 4]], 0.5)
    assert (second.op, second.dims) == ("cudaLaunchKernel", [])  # no op around it
    assert steps.kernels == 1 and steps.busy_us == (20 + 90) / 2
    assert steps.span_us == (170 + (260 - 170)) / 2  # the second starts where the first ends


def test_a_kernel_launched_before_the_recording_is_set_aside():
    steps = two_steps(x("kernel", "early", 5, 5, 3, tid=9))
    assert [event.name for event in steps.unlaunched] == ["early"] and len(steps.rows) == 2


def test_a_launch_without_a_kernel_is_lost_only_inside_a_step():
    steps = two_steps(
        x("cuda_runtime", "cudaMemsetAsync", 50, 1, 11), x("cuda_runtime", "cudaLaunchKernel", 900, 1, 12)
    )
    assert [event.name for event in steps.lost] == ["cudaMemsetAsync"]


def test_no_step_in_the_file_makes_all_of_it_one_step():
    trace = [x("cuda_runtime", "hipLaunchKernel", 1, 1, 1), x("kernel", "k", 5, 5, 1), x("kernel", "j", 8, 5, 2)]
    steps = work.per_step(Trace(trace[:2]))
    assert steps.numbers == [] and steps.kernels == 1 and steps.span_us == 5
    assert work.per_step(Trace(trace)).kernels == 2  # one span holds also the kernel without a launch
    assert work.per_step(Trace(trace[1:])).busy_us == 8  # two at once count once; no launches at all: by time


def test_on_a_cpu_the_ops_that_work_are_listed_without_the_wrappers():
    steps = work.per_step(
        Trace(
            [
                x("user_annotation", "ProfilerStep#0", 0, 100),
                x("cpu_op", "Torch-Compiled Region: 0/0", 0, 99),
                x("cpu_op", "aten::linear", 1, 50),
                x("cpu_op", "aten::t", 2, 5),
                x("cpu_op", "aten::addmm", 10, 40),
                x("cpu_op", "aten::expand", 11, 1),
                x("cpu_op", "aten::copy_", 13, 10),
            ]
        )
    )
    assert not steps.on_gpu
    assert [(row.name, row.times) for row in steps.rows] == [("aten::addmm", [30]), ("aten::copy_", [10])]


@pytest.mark.skipif(not FOREIGN.is_dir(), reason="other people's traces are not here")
@pytest.mark.parametrize("path", sorted(FOREIGN.glob("*.gz")), ids=lambda path: path.name)
def test_other_peoples_traces(path: Path):
    steps = work.per_step(reading.read(path))
    counted = sum(row.per_step for row in steps.rows) * max(1, len(steps.numbers))
    gpu = reading.read(path).of(events.GPU)
    assert round(counted) + len(steps.unlaunched) <= len(gpu)
    if "cpu-only" not in path.name:
        assert steps.rows and steps.busy_us > 0


@pytest.mark.skipif(not BAD.is_dir(), reason="the broken traces are not here")
@pytest.mark.parametrize("path", sorted(BAD.glob("*")), ids=lambda path: path.name)
def test_a_broken_trace_is_read_or_refused_in_one_line(path: Path):
    try:
        work.per_step(reading.read(path))
    except events.TraceError as error:
        assert str(path) in str(error) and "\n" not in str(error)
