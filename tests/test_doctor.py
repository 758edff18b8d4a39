"""`doctor`: a machine in order, and each thing that can be wrong with one."""

import http.server
import json
import os
import stat
import threading
from collections import namedtuple
from pathlib import Path

from common import doctor

import pytest
from conftest import run

CPU = {
    "versions": {"torch": "2.15.0", "triton": "3.9.0", "cuda": "13.2", "python": "3.12.0"},
    "device": "cpu", "why": "no NVIDIA driver was found on this machine", "name": "CPU", "recorded": 3,
    "compile": None, "triton": None, "dtype": None, "free_bytes": None,
}  # fmt: skip
GPU = CPU | {"device": "cuda", "why": "", "name": "NVIDIA H200", "free_bytes": 140e9}


@pytest.fixture
def diagnose(monkeypatch, tmp_path):
    """The checks by id, and the verdicts, on a machine of which torch tells `facts`."""
    for name in ("LOCAL_KERNELS", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(doctor.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(doctor.constants, "HF_HUB_CACHE", str(tmp_path))

    def _diagnose(facts=CPU, smi=None):
        monkeypatch.setattr(doctor, "_probe", lambda: facts)
        monkeypatch.setattr(doctor, "_smi", lambda: smi)
        checks, verdicts = doctor.diagnose(tmp_path / "traces")
        return {check.id: check for check in checks}, {verdict.commands: verdict.why for verdict in verdicts}

    return _diagnose


def test_this_machine_as_its_reader_sees_it():
    done = run("-m", "common", "doctor")
    lines = done.stdout.splitlines()
    assert all(line.startswith(("ok    ", "note  ", "FAIL  ")) for line in lines[:15])
    assert (done.returncode == 0) == (lines[-1].startswith("Every lesson can run here")) and done.stderr == ""


def test_a_machine_without_a_gpu_is_in_order(diagnose):
    checks, verdicts = diagnose()
    assert verdicts == {} and checks["gpu"].state == "note" and "no NVIDIA driver" in checks["gpu"].says
    assert {check.state for check in checks.values()} == {"ok", "note"}
    assert all(check.says for check in checks.values())


def test_no_compiler_no_caches_and_a_wrong_folder_are_named_with_their_lessons(tmp_path):
    """For real, all at once: each has its line and its way out."""
    (tmp_path / "file").write_text("")
    env = {
        "PATH": str(tmp_path), "CXX": "", "CC": "", "TRITON_CACHE_DIR": str(tmp_path / "file" / "x"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file"), "HF_ENDPOINT": "http://127.0.0.1:9",
        "LOCAL_KERNELS": "junk",
    }  # fmt: skip
    done = run("-m", "common", "doctor", "--json", env=env)
    data = json.loads(done.stdout)
    checks = {check["id"]: check for check in data["checks"]}
    assert done.returncode == 1 and done.stderr == ""
    assert "C++ compiler" in checks["compile"]["says"] and "apt install g++" in checks["compile"]["way_out"]
    assert "TRITON_CACHE_DIR" in checks["triton-cache"]["way_out"] and checks["inductor-cache"]["state"] == "FAIL"
    assert checks["hub"]["state"] == "note" and "Connection refused" in checks["hub"]["says"]
    assert checks["local"]["way_out"] == "make it kernels-community/liger-kernels=FOLDER"
    assert [one["commands"] for one in data["cannot_run"]] == [
        "every lesson",
        "01, 02 and 03 with --compile",
        "04_liger_mlp.py",
    ]


def test_a_torch_that_does_not_start(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: no such file')")
    done = run("-m", "common", "doctor", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1 and "FAIL  torch: torch does not start: ImportError: libcudart.so.13" in done.stdout
    assert "Cannot run here as asked: every lesson (torch does not start" in done.stdout


def test_a_torch_that_hangs(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_S", 0.05)
    assert doctor._probe() == {"error": "torch did not answer in 0.05 s"}


def test_a_gpu_that_torch_does_not_use(diagnose):
    why = "the NVIDIA driver is too old (it speaks CUDA 11.4) and torch 2.15.0 needs CUDA 13.2; install a newer driver"
    checks, verdicts = diagnose(CPU | {"why": why}, smi="NVIDIA A100, driver 470.1")
    assert checks["gpu"].state == "FAIL" and "NVIDIA A100, driver 470.1 is here" in checks["gpu"].says
    assert checks["gpu"].way_out == why and "any lesson with --device cuda" in verdicts


def test_nvidia_smi_is_asked(tmp_path, monkeypatch):
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 'NVIDIA T4, 535.1'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert doctor._smi() == "NVIDIA T4, driver 535.1"
    script.write_text("#!/bin/sh\nexit 9\n")
    assert doctor._smi() is None


def test_a_gpu_in_order_and_one_without_bf16(diagnose):
    checks, verdicts = diagnose(GPU, smi="NVIDIA H200, driver 580.1")
    assert checks["gpu"].says == "NVIDIA H200, driver 580.1; torch is built for CUDA 13.2" and verdicts == {}
    checks, verdicts = diagnose(
        GPU | {"dtype": "Tesla T4 has no bf16 units (Ampere, 2020, was first); use --dtype fp16"}
    )
    assert checks["gpu"].state == "note" and checks["gpu"].way_out == "add --dtype fp16"
    assert list(verdicts) == ["every lesson without --dtype fp16"]


def test_cupti_that_is_refused(diagnose):
    checks, verdicts = diagnose(GPU | {"recorded": 0})
    assert "NVreg_RestrictProfilingToAdminUsers" in checks["profiler"].way_out
    assert verdicts["every lesson"] == "a profiled launch leaves no event on the GPU"


def test_04_on_a_gpu_without_hub_package_or_compiler(diagnose, monkeypatch):
    _, verdicts = diagnose(GPU | {"triton": "Triton needs a C compiler and gcc is not here; install one"})
    assert verdicts["04_liger_mlp.py"] == "Triton needs a C compiler and gcc is not here"
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    checks, verdicts = diagnose(GPU)
    assert checks["liger"].way_out.startswith("uv run --with liger-kernel")
    assert "cannot be reached" in verdicts["04_liger_mlp.py"] and "not installed" in verdicts["04_liger_mlp.py"]


def test_the_hub_answers_or_is_switched_off(diagnose, monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)  # answers 501
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(doctor.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    assert diagnose()[0]["hub"].state == "ok"
    server.shutdown()
    monkeypatch.setattr(doctor.constants, "HF_HUB_OFFLINE", True)
    assert diagnose()[0]["hub"].says == "HF_HUB_OFFLINE is set"


def test_the_kernel_in_the_cache_and_in_a_folder(diagnose, monkeypatch, tmp_path):
    assert diagnose()[0]["kernel"].state == "note"
    (tmp_path / "kernels--kernels-community--liger-kernels").mkdir()
    assert diagnose()[0]["kernel"].state == "ok"
    monkeypatch.setenv("LOCAL_KERNELS", f"kernels-community/liger-kernels={tmp_path}")
    assert diagnose()[0]["local"].state == "ok"
    monkeypatch.setenv("LOCAL_KERNELS", "kernels-community/liger-kernels=/no/such/folder")
    checks, verdicts = diagnose(GPU)
    assert checks["local"].state == "FAIL" and "04_liger_mlp.py" in verdicts


def test_windows_and_wsl(diagnose, monkeypatch):
    monkeypatch.setattr(doctor.platform, "release", lambda: "5.15.0-microsoft-standard-WSL2")
    assert "WSL" in diagnose()[0]["system"].says
    monkeypatch.setattr(doctor.sys, "platform", "win32")
    assert "pytorch.org" in diagnose()[0]["system"].way_out


def test_little_memory_little_disk_and_a_folder_that_is_read_only(diagnose, monkeypatch):
    memory, usage = namedtuple("memory", "available"), namedtuple("usage", "free")
    with monkeypatch.context() as patch:
        patch.setattr(doctor.psutil, "virtual_memory", lambda: memory(1e9))
        checks, verdicts = diagnose()
        assert checks["memory"].way_out == "use smaller sizes" and "some lessons at the articles' shapes" in verdicts
    with monkeypatch.context() as patch:
        patch.setattr(doctor.shutil, "disk_usage", lambda folder: usage(1e8))
        assert "0.1 GB free" in diagnose()[1]["every lesson"]
    with monkeypatch.context() as patch:

        def refuse(dir: Path):
            raise PermissionError(13, "Permission denied")

        patch.setattr(doctor.tempfile, "TemporaryFile", refuse)
        checks, verdicts = diagnose()
        assert "--out and TMPDIR" in checks["traces"].way_out and "every lesson" in verdicts


@pytest.mark.parametrize("endpoint", ["http://a b", "file:///etc/passwd", "junk", "http://127.0.0.1:9"])
def test_an_endpoint_that_is_none(endpoint):
    assert doctor._ask(endpoint)


def test_a_compiler_that_does_not_work_and_one_that_is_blank(tmp_path):
    done = run("-m", "common", "doctor", env={"CXX": "/bin/false"})
    assert (
        done.returncode == 1
        and "FAIL  compile: --compile needs a C++ compiler and /bin/false does not work" in done.stdout
    )
    done = run("-c", "from common import device; device.check_compiler('cpu', 'x')", env={"CXX": " "})
    assert done.returncode == 0, done.stderr


def test_a_torch_that_prints_is_heard_all_the_same(monkeypatch):
    class Done:
        stdout, stderr, returncode = b'\xff3\nprobe: {"device": "cpu"}\n{}\n', b"", 0

    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **how: Done)
    assert doctor._probe() == {"device": "cpu"}


def test_doctor_into_a_closed_pipe_is_no_traceback():
    done = run("-c", "import os; os.system(f'{os.sys.executable} -m common doctor | head -n 1')")
    assert done.stderr == "" and done.stdout.startswith("ok    torch")
