"""The parts of a run that a CPU does not reach by itself: the scrub, a bad driver, lost kernels, wrong numbers."""

import json

from common import artifacts, device, lesson
from common.device import CannotRun
from common.events import Args, Event, Trace

import pytest
import torch
from conftest import H200, ROOT, one_line, read_json

TRACE = """{
  "schemaVersion": 1,
  "host_name": "me\\"s box",
  "traceEvents": [
  {"ph": "X", "name": "a / b",
   "args": {"kernel_file": "/home/me/cache/c.py", "w": "C:\\\\Users\\\\me\\\\d.py", "bw": inf}},
  {"ph": "X", "name": "## Call CompiledFxGraph abc ##", "args": {"ratio": "1/2"}}
  ],
  "username": "me",
  "traceName": "/tmp/me/trace.json"
}
"""


def test_the_scrub_takes_names_and_folders_and_leaves_the_rest():
    text = artifacts.scrub(TRACE, {"name": "x"})
    trace = json.loads(text.replace("inf", "1"))
    assert set(trace) == {"schemaVersion", "lesson", "traceEvents"} and trace["lesson"] == {"name": "x"}
    args = trace["traceEvents"][0]["args"]
    assert (args["kernel_file"], args["w"]) == ("c.py", "d.py") and "me" not in text.replace("name", "")
    assert trace["traceEvents"][0]["name"] == "a / b" and trace["traceEvents"][1]["args"] == {"ratio": "1/2"}


@pytest.mark.parametrize("key", ["host_name", "traceName", "username"])
def test_the_scrub_keeps_json_whole_wherever_the_key_stands(key):
    for text in (f'{{"{key}": "a", "traceEvents": []}}', f'{{"traceEvents": [], "{key}": "a"}}'):
        assert json.loads(artifacts.scrub(text, {})) == {"lesson": {}, "traceEvents": []}


DRIVERS = [
    (
        "The NVIDIA driver on your system is too old (found version 11040). Please update",
        "too old (it speaks CUDA 11.4)",
    ),
    ("Found no NVIDIA driver on your system. Please check", "no NVIDIA driver was found"),
    ("CUDA unknown error - this may be due to an incorrectly set up environment", "CUDA unknown error"),
]


@pytest.mark.parametrize(("raised", "says"), DRIVERS)
def test_why_there_is_no_gpu(monkeypatch, raised, says):
    def init():
        raise RuntimeError(raised)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert device.choose(None)[0] == "cpu" and says in device.choose(None)[1]
    with pytest.raises(CannotRun, match="^--device cuda: ") as error:
        device.choose("cuda")
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_torch_without_cuda_says_so(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotRun, match="built for CPUs only"):
        device.choose("cuda")


def test_a_gpu_without_bf16_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(CannotRun, match="Tesla T4 has no bf16 units.*--dtype fp16"):
        device.check_dtype("cuda", "bf16")
    device.check_dtype("cuda", "fp16")


def test_a_folder_with_a_quote_in_its_name(call, tmp_path):
    out = tmp_path / 'a "b" \\c'
    assert call("01_matmul_add", "--size", "8", "--out", out)[0] == 0
    (path,) = out.rglob("*.json")
    assert "traceName" not in read_json(path)


@pytest.mark.parametrize("cxx", ["", "g++ -O2"])
def test_a_compiler_may_be_set_with_flags_or_not_at_all(monkeypatch, cxx):
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setattr(device.shutil, "which", lambda name: name if name in ("g++", "clang++") else None)
    device.check_compiler("cpu", "--compile")


def test_memory_is_estimated_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (139_000_000_000, 150_000_000_000))
    with pytest.raises(CannotRun, match="needs 412 GB, this GPU has 139.0 GB free; use smaller sizes"):
        device.check_memory("cuda", 412_000_000_000 // 6, "bf16")
    device.check_memory("cuda", 1000, "bf16")


def test_triton_needs_a_c_compiler_and_headers(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CannotRun, match="Triton needs a C compiler and no-such-compiler is not here"):
        device.check_compiler("cuda", "Triton")
    monkeypatch.setenv("CC", "python3")
    monkeypatch.setattr(device.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(CannotRun, match="Python's C headers"):
        device.check_compiler("cuda", "Triton")


def test_wrong_output_exits_1_and_writes_nothing(call, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "add", lambda a, b: a - b if a.dtype == torch.bfloat16 else a + b)
    code, _, err = call("01_matmul_add", "--size", "8", "--warmup", "--out", tmp_path)
    assert code == 1 and "the output is wrong" in one_line(err)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


NO_MEMORY = [
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 TB"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
]


@pytest.mark.parametrize("bad", NO_MEMORY)
def test_running_out_of_memory_is_one_line(call, tmp_path, monkeypatch, bad):
    def fails(*_):
        raise bad

    monkeypatch.setattr(torch, "randn", fails)
    code, _, err = call("01_matmul_add", "--size", "8", "--out", tmp_path)
    assert code == 1 and "out of memory, use smaller sizes" in one_line(err)


STEP = Event(ph="X", cat="user_annotation", name="ProfilerStep#2", ts=0, dur=9)
LAUNCH = Event(ph="X", cat="cuda_runtime", name="cudaLaunchKernel", ts=1, dur=1, args=Args(correlation=5))
OP = Event(ph="X", cat="cpu_op", name="aten::mm", ts=1, dur=1)


@pytest.mark.parametrize(("event", "says"), [(LAUNCH, "1 launches have no kernel"), (OP, "no GPU event at all")])
def test_a_run_whose_kernels_were_lost_fails_loudly(call, tmp_path, monkeypatch, event, says):
    monkeypatch.setattr(lesson.reading, "read", lambda path: Trace([STEP, event]))
    monkeypatch.setattr(lesson.machine, "choose", lambda requested: ("cuda", ""))
    for name in ("check_dtype", "check_memory"):
        monkeypatch.setattr(lesson.machine, name, lambda *_: None)
    monkeypatch.setattr(lesson.session, "run", lambda *_: lesson.Result(tmp_path / "x.json", 0.0, 0.0, 1.0, 20))
    monkeypatch.setattr(lesson.machine, "name", lambda _: "GPU")
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: self)
    code, _, err = call("01_matmul_add", "--size", "8", "--out", tmp_path)
    assert code == 1 and says in one_line(err) and "another profiler" in err


def test_recorded_traces_are_scrubbed_small_and_beside_their_tables():
    paths = sorted(H200.rglob("*.json.gz"))
    assert len(paths) >= 15
    for path in paths:
        assert path.stat().st_size < 20_000
        assert path.with_name(path.name.replace(".json.gz", ".txt")).exists()
        trace = read_json(path)
        assert not {"host_name", "traceName", "username"} & set(trace)
        assert "/" not in "".join(str(e.get("args", {}).get("kernel_file", "")) for e in trace["traceEvents"])
        about = trace["lesson"]
        assert about["device"] == "NVIDIA H200" and about["name"] == path.parent.name
        assert about["ceilings"]["copy_gbps"] > 0 and about["ceilings"]["gemm_tflops"] > 0


def test_the_page_of_the_recorded_traces_lists_each_of_them():
    page = (ROOT / "traces" / "README.md").read_text()
    for path in H200.rglob("*.json.gz"):
        assert f"{path.parent.name}/{path.name.removesuffix('.json.gz')}" in page
