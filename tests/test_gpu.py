"""What the articles say, asked of this GPU at their shapes: uv run pytest -m gpu.

Each test names its claim. Where another GPU answers differently than the articles' A100, the test holds to what is true
on both, and says what differs. No test asserts a time.
"""

import re
import subprocess
import sys
from pathlib import Path

from common import names, reading, work
from common.work import Steps

import pytest
import torch
from conftest import ROOT, one_line, read_json, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

MLP = ("--batch", "64", "--seq", "128", "--dim", "768", "--hidden", "3072")
MLP_FILES = "64x128x768x3072_bf16_warm_"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """(path of the trace, its steps, what was printed) of a lesson's run; each run once."""
    folder, done = tmp_path_factory.mktemp("traces"), {}

    def _profiled(*words: str) -> tuple[Path, Steps, str]:
        if words not in done:
            out = folder / str(len(done))
            result = run(*words, "--out", out)
            assert (result.returncode, result.stderr) == (0, ""), result.stderr
            (path,) = out.rglob("*.json")
            done[words] = path, work.per_step(reading.read(path)), result.stdout
        return done[words]

    return _profiled


def named(path: Path, name: str) -> list[dict]:
    return [event for event in read_json(path)["traceEvents"] if event["name"] == name]


def families(steps: Steps) -> list[str]:
    """Of the kernels of a step, in order; copies and memsets of the driver are left out."""
    rows = [row for row in steps.rows if row.origin != "driver"]
    return [row.family for row in rows for _ in range(round(row.per_step))]


def gemms(steps: Steps) -> set[str]:
    return {row.name for row in steps.rows if row.family == names.GEMM}


def test_artifacts_and_the_three_steps(profiled):  # P1.artifacts, P1.steps
    path, steps, _ = profiled("01_matmul_add.py", "--size", "64")
    assert path.name == "64_bf16_cold_eager.json" and path.with_suffix(".txt").exists()
    assert steps.numbers == [2, 3, 4]


def test_the_printed_run_is_whole(profiled):
    _, _, out = profiled("03_simple_mlp.py", *MLP)
    lines = out.splitlines()
    assert torch.cuda.get_device_name() in lines[0] and "CUDA events" in lines[2]
    assert "Recorded on" not in out and re.search(r"GPU busy [\d.,]+ us", out)


def test_metadata_has_the_ceilings_and_the_stated_work(profiled):
    path, _, _ = profiled("03_simple_mlp.py", *MLP)
    about = read_json(path)["lesson"]
    assert about["ceilings"]["copy_gbps"] > 0 and about["ceilings"]["gemm_tflops"] > 0
    assert sum(w["flops"] for w in about["work"] if w["role"] in ("gate", "up", "down")) == 3 * 38_654_705_664
    assert about["versions"]["cuda"] and about["device"] == torch.cuda.get_device_name()


def test_overhead_bound_at_64_and_not_at_4096(profiled):  # P1.overhead-bound, P1.compute-bound
    small, large = (profiled("01_matmul_add.py", "--size", n, "--warmup")[1] for n in ("64", "4096"))
    assert small.busy_us / small.span_us < 0.2 < large.busy_us / large.span_us
    assert max(large.rows, key=lambda row: row.share).family == names.GEMM


def test_the_chain_of_dispatch(profiled):  # P1.chain
    path, steps, _ = profiled("01_matmul_add.py", "--size", "64", "--warmup")
    chain = ["ProfilerStep#2", "matmul_add", "aten::matmul", "aten::mm"]
    first = [min(named(path, name), key=lambda event: event["ts"]) for name in chain if named(path, name)]
    starts = [event["ts"] for event in first if event.get("cat") != "gpu_user_annotation"]
    assert starts == sorted(starts) and len(first) == 4
    assert [row.op for row in steps.rows if row.family != names.MEMSET] == ["aten::mm", "aten::add"]


def test_a_batch_axis_calls_bmm(profiled):  # P1.bmm
    path, steps, _ = profiled("01_matmul_add.py", "--size", "64", "--warmup", "--batched")
    assert path.name == "64x64x64_bf16_warm_eager.json"
    assert [row.op for row in steps.rows if row.family != names.MEMSET] == ["aten::bmm", "aten::add"]


def test_the_add_needs_few_registers_and_no_shared_memory(profiled):  # P1.footprint
    path, steps, _ = profiled("01_matmul_add.py", "--size", "4096", "--warmup")
    by_family = {row.family: named(path, row.name)[0]["args"] for row in steps.rows if row.family != names.MEMSET}
    gemm, add = by_family[names.GEMM], by_family[names.ELEMENTWISE]
    assert add["shared memory"] == 0 < gemm["shared memory"]
    assert add["registers per thread"] < gemm["registers per thread"]


@pytest.mark.parametrize("size", ["64", "4096"])
def test_compiled_it_is_one_addmm_and_still_two_gpu_operations(profiled, size):  # P1.addmm, P1.two-gpu-ops
    path, steps, _ = profiled("01_matmul_add.py", "--size", size, "--warmup", "--compile")
    assert {row.op for row in steps.rows} == {"aten::addmm"}
    assert (steps.kernels, steps.copies) == (1, 1)  # the bias is copied into the output first
    hashes = {event["name"] for event in read_json(path)["traceEvents"] if "Call CompiledFxGraph" in event["name"]}
    assert len(hashes) == 1 and len(named(path, "TorchDynamo Cache Lookup")) == 3  # P1.compiled-rows


def test_a_linear_is_one_kernel_compiled_or_not(profiled):  # P2.linear-chain, P2.one-kernel, P2.compile-idle
    path, eager, _ = profiled("02_linear.py")
    compiled_path, compiled, _ = profiled("02_linear.py", "--compile")
    assert eager.kernels == compiled.kernels == 1 and gemms(eager) == gemms(compiled)
    assert named(path, "aten::t") and not named(path, "aten::add") and not named(compiled_path, "aten::t")


def test_the_eager_mlp_is_five_kernels(profiled):  # P2.five-kernels, P2.metadata-ops; an H200 adds memsets
    _, steps, _ = profiled("03_simple_mlp.py", *MLP)
    assert families(steps) == ["gemm", "gemm", "elementwise", "elementwise", "gemm"]
    assert {row.op for row in steps.rows} == {"aten::mm", "aten::gelu", "aten::mul"}


def test_the_three_gemms_have_the_articles_shapes(profiled):  # P2.equal-flops
    _, steps, _ = profiled("03_simple_mlp.py", *MLP)
    shapes = [(row.dims, row.per_step) for row in steps.rows if row.family == names.GEMM]
    assert shapes == [([[8192, 768], [768, 3072]], 2), ([[8192, 3072], [3072, 768]], 1)]


def test_compiled_the_gemms_are_the_same_and_the_rest_is_one_triton_kernel(profiled):
    # P2.same-gemms-compiled, P2.chain-gone, P2.one-triton
    _, eager, _ = profiled("03_simple_mlp.py", *MLP)
    path, compiled, _ = profiled("03_simple_mlp.py", *MLP, "--compile")
    assert gemms(compiled) == gemms(eager)
    assert families(compiled) == ["gemm", "gemm", "elementwise", "gemm"]
    (fused,) = [row for row in compiled.rows if row.family == names.ELEMENTWISE]
    assert fused.name == "triton_poi_fused__unsafe_view_gelu_mul_0" and fused.origin == "Inductor"
    for gone in ("aten::linear", "aten::t", "aten::matmul", "aten::reshape"):
        assert not named(path, gone)


def test_autotuned_runs_whole(profiled):
    path, steps, _ = profiled("03_simple_mlp.py", *MLP, "--compile", "max-autotune")
    assert path.name == f"{MLP_FILES}compile-max-autotune.json" and not steps.lost
    assert steps.rows and families(steps).count("gemm") == 3


@pytest.mark.parametrize("source", ["local", "package"])
def test_liger_is_one_kernel_between_the_same_gemms(profiled, tmp_path_factory, source):
    # P2.liger-one-kernel, from a folder in the Hub's layout and from the package: a test has no network
    _, eager, _ = profiled("03_simple_mlp.py", *MLP)
    words = ["04_liger_mlp.py", *MLP]
    if source == "package":
        words += ["--source", "package"]
    env = {"LOCAL_KERNELS": f"kernels-community/liger-kernels={hub_layout(tmp_path_factory.mktemp('kernel'))}"}
    out = tmp_path_factory.mktemp("liger")
    done = run(*words, "--out", out, env=env if source == "local" else {})
    assert (done.returncode, done.stderr) == (0, "")
    path = out / "04_liger_mlp" / f"{MLP_FILES}liger-{source}.json"
    steps = work.per_step(reading.read(path))
    assert gemms(steps) == gemms(eager) and families(steps) == ["gemm", "gemm", "elementwise", "gemm"]
    (fused,) = [row for row in steps.rows if row.family == names.ELEMENTWISE]
    assert (fused.name, fused.op) == ("_geglu_tanh_forward_kernel", "LigerGELUMulFunction")
    assert not named(path, "TorchDynamo Cache Lookup")
    layer = read_json(path)["lesson"]["layer"]
    assert layer in done.stdout and ("LOCAL_KERNELS" in layer) == (source == "local")


def hub_layout(folder: Path) -> Path:
    build = folder / "build" / "torch-cuda"
    build.mkdir(parents=True)
    (build / "__init__.py").write_text("from . import layers\n")
    (build / "layers.py").write_text("from liger_kernel.transformers.geglu import LigerGEGLUMLP\n")
    (build / "metadata.json").write_text(
        '{"name": "liger-kernels", "id": "_liger_kernels_1", "version": 1, "license": "MIT", "python-depends": [],'
        ' "backend": {"type": "cuda"}}'
    )
    return folder


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_other_dtypes_and_odd_sizes(profiled, dtype):
    odd = ("--batch", "3", "--seq", "5", "--dim", "100", "--hidden", "37")
    path, steps, _ = profiled("03_simple_mlp.py", *odd, "--dtype", dtype)
    assert path.name == f"3x5x100x37_{dtype}_warm_eager.json" and families(steps).count("gemm") == 3


def test_a_gpu_run_without_gpu_events_is_no_quiet_success(tmp_path):
    """As if CUPTI had refused: the profiler records the CPU alone."""
    script = (
        "import sys, torch\nfrom common import lesson\n"
        "sys.argv = ['01_matmul_add.py', '--size', '8', '--out', sys.argv[1]]\n"
        "from torch.profiler import ProfilerActivity\n"
        "CPU = ProfilerActivity.CPU\n"
        "lesson.session.ProfilerActivity = type('Deaf', (), {'CPU': CPU, 'CUDA': CPU})\n"
        "lesson.load('01_matmul_add').main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "lost GPU activity" in one_line(done.stderr)


def test_doctor_finds_this_gpu_and_its_profiler():
    done = run("-m", "common", "doctor")
    assert "ok    gpu: NVIDIA " in done.stdout and "ok    profiler: a profiled launch shows up (cuda)" in done.stdout


def test_the_findings_of_a_run_on_this_gpu(profiled):
    _, _, out = profiled("03_simple_mlp.py")
    said = out.split("What stands out:")[1].split("Next:")[0]
    assert "Round trip through memory" in said and "aten::gelu to aten::mul, 50.33 MB" in said
    _, _, out = profiled("01_matmul_add.py", "--size", "64")
    assert "Cold start: the first step takes" in out and "Launch-bound: " in out


def test_memory_is_checked_against_this_gpu(tmp_path):
    done = run("01_matmul_add.py", "--size", "400000", "--out", tmp_path)
    assert done.returncode == 1 and "this GPU has" in one_line(done.stderr)
