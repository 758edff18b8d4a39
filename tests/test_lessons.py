"""The four scripts, run as a reader runs them, on the CPU at small sizes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

from common import lesson

import pytest
import torch
from conftest import ROOT, one_line, read_json, run

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="on a GPU the file names differ: uv run pytest -m gpu"
)

MLP = ("--batch", "2", "--seq", "4", "--dim", "16", "--hidden", "32")
OPS = {"01_matmul_add": ["aten::mm", "aten::add"], "02_linear": ["aten::addmm", "aten::copy_"]}
OPS["03_simple_mlp"] = ["aten::mm", "aten::mm", "aten::gelu", "aten::mul", "aten::mm"]
ANNOTATION = {"01_matmul_add": "matmul_add", "02_linear": "linear_fwd", "03_simple_mlp": "mlp_fwd"}
RUNS = [
    # script, flags, the name of its files
    ("01_matmul_add", ("--size", "8"), "8_bf16_cold_eager_cpu"),
    ("01_matmul_add", ("--size", "8", "--warmup", "--compile"), "8_bf16_warm_compile_cpu"),
    ("02_linear", ("--batch", "4", "--in_dim", "8", "--out-dim", "16"), "4x8x16_bf16_warm_eager_cpu"),
    ("02_linear", ("--batch", "4", "--compile"), "4x32x64_bf16_warm_compile_cpu"),
    ("03_simple_mlp", MLP, "2x4x16x32_bf16_warm_eager_cpu"),
    ("03_simple_mlp", (*MLP, "--compile"), "2x4x16x32_bf16_warm_compile_cpu"),
]


def check_files(folder, script, name, steps=(2, 3, 4)):
    """A run left exactly its two files, and the trace holds its steps and what the lesson states."""
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert written == {script, f"{script}/{name}.json", f"{script}/{name}.txt"}
    trace = read_json(folder / script / f"{name}.json")
    names = [event["name"] for event in trace["traceEvents"]]
    assert {n for n in names if n.startswith("ProfilerStep#")} == {f"ProfilerStep#{n}" for n in steps}
    assert names.count(ANNOTATION[script]) == len(steps)
    about = trace["lesson"]
    assert about["name"] == script and about["ceilings"] is None and about["unprofiled_us"] > 0
    assert about["settings"]["variant"] in name and about["versions"]["torch"] == torch.__version__
    assert all(work["flops"] > 0 and work["bytes"] > 0 for work in about["work"])
    assert "host_name" not in trace and "traceName" not in trace
    assert "Self CPU time total" in (folder / script / f"{name}.txt").read_text()


def ops_of_a_step(table: str) -> list[str]:
    rows = re.findall(r"^(aten::\w+) .*\]\s+(\d+)\s+[\d,.]+\s+[\d,.]+\.\.[\d,.]+\s+\d+%$", table, re.MULTILINE)
    return [op for op, calls in rows for _ in range(int(calls))]


@pytest.mark.parametrize(("script", "flags", "name"), RUNS, ids=[run[2] for run in RUNS])
def test_a_run_prints_and_writes_what_it_promises(tmp_path, compiled_caches, script, flags, name):
    done = run(f"{script}.py", *flags, "--out", tmp_path, env=compiled_caches)
    assert (done.returncode, done.stderr) == (0, "")
    environment, numerics, times, *rest = done.stdout.splitlines()
    assert re.match(r"CPU \(.*\), torch \S+, .*; (bf16|fp16|fp32), [\dx]+, (cold|warm), \S+$", environment)
    assert re.match(r"numerics: relative error \S+ against fp(32|64)", numerics)
    assert ("against eager" in numerics) == ("compile" in name)
    assert re.match(r"one forward: \S+ us \(median of \d+, perf_counter\); \S+ us a step in the profile", times)
    own, recorded = done.stdout.split("Recorded on one NVIDIA H200")
    assert "No GPU kernels in this trace" in own and "no NVIDIA driver" in own
    assert re.search(r"A step: \d kernels?, \d cop(y|ies), \d memsets?; GPU busy", recorded)
    following = rest[rest.index("Next:") + 1 :]
    assert "uv run -m common open " in following[0] and "traces/recorded/h200" in following[1]
    again = shlex.join([*flags, "--out", str(tmp_path), "--compile"])
    assert (following[-1] == f"  uv run {script}.py {again}") == ("eager" in name)
    if "eager" in name:
        assert ops_of_a_step(own) == OPS[script]
    if (script, "compile" in name) == ("03_simple_mlp", True):  # the C++ kernel of Inductor has a row of its own
        assert re.search(r"cpp_fused\w*gelu\w*mul\w*\s+elementwise\s+Inductor", own)
        assert ops_of_a_step(own) == ["aten::mm"] * 3
    check_files(tmp_path, script, name)


@pytest.mark.parametrize(
    ("script", "flags", "name", "steps"),
    [
        ("01_matmul_add", ("--size", "8", "--batched", "--dtype", "fp32"), "8x8x8_fp32_cold_eager_cpu", (2, 3, 4)),
        ("01_matmul_add", ("--size", "8", "--dtype", "fp16", "--warmup"), "8_fp16_warm_eager_cpu", (2, 3, 4)),
        ("01_matmul_add", ("--size", "8", "--schedule", "0,0,5"), "8_bf16_cold_eager_s0-0-5_cpu", (0, 1, 2, 3, 4)),
        ("03_simple_mlp", (*MLP, "--cold", "--device", "cpu"), "2x4x16x32_bf16_cold_eager_cpu", (2, 3, 4)),
    ],
)
def test_everything_that_changes_a_run_is_in_its_name(call, tmp_path, script, flags, name, steps):
    code, out, err = call(script, *flags, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert ("aten::bmm" in out) == ("--batched" in flags)
    check_files(tmp_path, script, name, steps)


def test_autotuning_is_quiet_and_in_the_name(tmp_path, compiled_caches):
    done = run("03_simple_mlp.py", *MLP, "--compile", "max-autotune", "--out", tmp_path, env=compiled_caches)
    assert (done.returncode, done.stderr) == (0, "") and "AUTOTUNE" not in done.stdout
    check_files(tmp_path, "03_simple_mlp", "2x4x16x32_bf16_warm_compile-max-autotune_cpu")


def test_a_rerun_replaces_its_own_files_and_no_others(call, tmp_path):
    for size in ("8", "8", "16"):
        assert call("01_matmul_add", "--size", size, "--out", tmp_path)[0] == 0
    assert len(list((tmp_path / "01_matmul_add").iterdir())) == 4


def test_liger_without_a_gpu_shows_the_recorded_run(call, tmp_path):
    code, out, err = call("04_liger_mlp", "--source", "package", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "needs a GPU" in out and "_geglu_tanh_forward_kernel" in out


def test_the_first_five_findings_follow_the_table_of_a_gpu(call, tmp_path):
    _, out, _ = call("03_simple_mlp", *MLP, "--out", tmp_path)
    own, recorded = out.split("Recorded on one NVIDIA H200")
    assert "What stands out:" not in own
    findings = recorded.split("What stands out:")[1].split("Next:")[0]
    assert re.findall(r"^\d(?=\. )", findings, re.M) == list("12345")
    assert "1 finding more:\n  uv run -m common explain traces/recorded/h200/03_simple_mlp/" in findings


def test_the_recorded_run_nearest_to_the_asked_one_is_shown_and_named(call, tmp_path):
    _, out, _ = call("01_matmul_add", "--size", "8", "--warmup", "--batched", "--out", tmp_path)
    assert "64x64x64_bf16_warm_eager, the nearest that was recorded to 8x8x8_bf16_warm_eager" in out
    _, out, _ = call("01_matmul_add", "--size", "64", "--out", tmp_path)
    assert "the same command\n  traces/recorded/h200/01_matmul_add/64_bf16_cold_eager.json.gz\n" in out


@pytest.mark.parametrize("script", sorted(path.name for path in ROOT.glob("[0-9]*.py")))
def test_help_has_the_articles_command_as_its_example(call, script):
    code, out, _ = call(script, "--help")
    assert code == 0 and f"example: uv run {script} --" in out
    for flag in ("--dtype", "--device", "--warmup", "--cold", "--schedule", "--out", "--no-ceilings", "--full-names"):
        assert flag in out


WRONG = [
    ("01_matmul_add.py", "--size", "0"),
    ("01_matmul_add.py", "--size", "-3"),
    ("01_matmul_add.py", "--size", "many"),
    ("01_matmul_add.py", "--size", "9" * 5000),
    ("01_matmul_add.py", "--schedule", "1,1"),
    ("01_matmul_add.py", "--schedule", "1,1,0"),
    ("01_matmul_add.py", "--schedule", "0,0,999999999"),
    ("03_simple_mlp.py", "--compile", "fastest"),
    ("03_simple_mlp.py", "--dtype", "fp8"),
    ("03_simple_mlp.py", "--device", "tpu"),
    ("03_simple_mlp.py", "--warmup", "--cold"),
    ("04_liger_mlp.py", "--compile"),
    ("04_liger_mlp.py", "--source", "disk"),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words)[:40])
def test_wrong_usage_exits_2_with_the_flag_named(call, tmp_path, words):
    code, _, err = call(*words, "--out", tmp_path)
    flag = next(word for word in reversed(words) if word.startswith("--"))
    assert code == 2 and flag in err.strip().splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("01_matmul_add", "--size", "100000000"), "needs 300,000,000 GB, this machine has"),
        (("03_simple_mlp", "--batch", "9" * 18), "use smaller sizes"),
        (("02_linear", "--device", "cuda"), "--device cuda: no NVIDIA driver was found"),
    ],
)
def test_what_this_machine_cannot_do_exits_1_in_one_line(call, tmp_path, words, says):
    code, _, err = call(*words, "--out", tmp_path)
    assert code == 1 and says in one_line(err) and not list(tmp_path.iterdir())


def test_an_out_that_is_no_folder_exits_1_in_one_line(call, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, _, err = call("01_matmul_add", "--out", tmp_path / "file")
    assert code == 1 and "--out DIR writes elsewhere" in one_line(err)
    assert (tmp_path / "file").read_text() == "mine"


def test_no_compiler_is_one_line_instead_of_eighty(call, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, _, err = call("03_simple_mlp", *MLP, "--compile", "--out", tmp_path)
    assert code == 1 and "needs a C++ compiler and no-such-compiler is not here" in one_line(err)


def test_a_cache_folder_that_is_a_file_is_one_line(call, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    code, _, err = call("01_matmul_add", "--size", "8", "--out", tmp_path)
    assert code == 1 and "TORCHINDUCTOR_CACHE_DIR is " in one_line(err) and "set it to a folder" in err


def test_a_compiler_that_does_not_run_is_one_line(call, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    code, _, err = call("03_simple_mlp", *MLP, "--compile", "--out", tmp_path)
    assert code == 1 and "needs a C++ compiler" in one_line(err) and "/false does not work" in err


def test_a_compiler_that_fails_is_one_line_too(tmp_path):
    compiler = tmp_path / "c++"  # one that answers, as a broken installation does, and compiles nothing
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 12.2.0"\n')
    compiler.chmod(0o755)
    env = {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = run("03_simple_mlp.py", *MLP, "--compile", "--out", tmp_path / "out", env=env)
    assert done.returncode == 1 and "torch.compile failed, run without --compile" in one_line(done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
@pytest.mark.parametrize("part", [0, 0.3, 0.98])  # of the trace that still fits
def test_a_full_disk_loses_nothing(call, tmp_path, part):
    import resource

    assert call("01_matmul_add", "--size", "8", "--out", tmp_path)[0] == 0
    room = int(part * (tmp_path / "01_matmul_add" / "8_bf16_cold_eager_cpu.json").stat().st_size)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    # What a full disk looks like to a process: no file may grow past `room` bytes.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # noqa: E731
    done = run("01_matmul_add.py", "--size", "8", "--out", tmp_path, preexec_fn=limit)
    assert done.returncode == 1 and "01_matmul_add: " in one_line(done.stderr)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("after_s", [0.3, 0.7, 1.2, 2.5, 4.0, 5.5, 7.0, 8.5])
def test_ctrl_c_at_any_moment_is_one_line_and_loses_nothing(tmp_path, after_s):
    words = ["03_simple_mlp.py", "--schedule", "1,1,400", "--out", str(tmp_path)]  # minutes: it cannot be done before
    child = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(after_s)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode in (-signal.SIGINT, 130, 1) and one_line(err) == "interrupted"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not list(tmp_path.rglob(".unfinished-*"))


def test_an_interrupted_compile_is_one_line(tmp_path):
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    words = ["03_simple_mlp.py", *MLP, "--compile", "--out", str(tmp_path / "out")]
    child = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    time.sleep(8)  # most of a first compile is still to come
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0 or one_line(err) == "interrupted"
    assert child.returncode == 0 or not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_next_compares_with_the_eager_run_where_there_is_one(call, tmp_path):
    _, out, _ = call("02_linear", "--batch", "4", "--guess", "1", "--out", tmp_path)
    assert f"  uv run 02_linear.py --batch 4 --out {tmp_path} --compile\n" in out
    _, out, _ = call("02_linear", "--batch", "4", "--compile", "--out", tmp_path)
    eager, compiled = (f"{tmp_path}/02_linear/4x32x64_bf16_warm_{v}_cpu.json" for v in ("eager", "compile"))
    assert f"  uv run -m common compare {eager} {compiled}\n" in out


def test_lessons_load_by_path_and_hold_their_own_model():
    mlp = lesson.load("03_simple_mlp").SimpleGeGLUMLP(8, 16)
    assert mlp(torch.randn(1, 2, 8)).shape == (1, 2, 8)


def test_stated_work_is_the_articles():
    work = lesson.load("03_simple_mlp").stated_work(8192, 768, 3072, 2, fused=False)
    assert [w["role"] for w in work] == ["gate", "up", "gelu", "mul", "down"]
    assert [w["flops"] for w in work if w["role"] in ("gate", "up", "down")] == [38_654_705_664] * 3
    assert [w["bytes"] for w in work if w["role"] in ("gelu", "mul")] == [100_663_296, 150_994_944]
    fused = lesson.load("04_liger_mlp").stated_work(8192, 768, 3072, 2)
    assert fused == lesson.load("03_simple_mlp").stated_work(8192, 768, 3072, 2, fused=True)
    assert fused[2]["bytes"] == 150_994_944
