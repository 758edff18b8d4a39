"""The fourth script and the Hub: `get_kernel` itself, against a Hub on the loopback interface, and its failures."""

import os
import re
import sys
from types import SimpleNamespace

from common import hub, lesson
from common.device import CannotRun

import pytest
import torch
from conftest import one_line, read_json, run
from hub_server import COMMITS, REPO, serve

on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the file names differ: uv run pytest -m gpu")
ORIGIN = f"LigerGEGLUMLP from the Hub, {REPO} version 1"
NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # a port on which nothing listens


@pytest.fixture
def ladder(tmp_path, monkeypatch):
    """Runs the script against a Hub, with nothing of this machine's settings, token, cache or proxy."""
    for name in list(os.environ):
        if re.match(r"HF_|HUGGING|KERNELS_|.*_proxy$|.*_OFFLINE$|.*TELEMETRY$|DO_NOT_TRACK$", name, re.IGNORECASE):
            monkeypatch.delenv(name)
    caches = {name: str(tmp_path / name) for name in ("HF_HOME", "HF_HUB_CACHE", "KERNELS_CACHE")}
    sizes = ("--batch", "1", "--seq", "4", "--dim", "16", "--hidden", "32")

    def go(server, **env):
        env = {"HF_ENDPOINT": server.url, "NO_PROXY": "127.0.0.1"} | caches | env
        done = run("04_liger_mlp.py", *sizes, "--out", tmp_path / "out", env=env)
        assert "Traceback" not in done.stderr
        return done

    return go


def written(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def assert_ran(done, out, variant, origin):
    assert (done.returncode, done.stderr) == (0, "") and origin in done.stdout.splitlines()
    assert re.search(r"^numerics: relative error \S+ against fp32, \S+ against eager", done.stdout, re.MULTILINE)
    stem = f"04_liger_mlp/1x4x16x32_bf16_warm_{variant}_cpu"
    assert written(out) == {f"{stem}.json", f"{stem}.txt"}
    about = read_json(out / f"{stem}.json")["lesson"]
    assert about["layer"] == origin and about["settings"]["variant"] == variant


def why_not(done):
    """The one line that says why there was no run: with status 1 on stderr, with status 0 before the recorded one."""
    if done.returncode == 1:
        assert not done.stdout
        return one_line(done.stderr)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("This cannot run here: "))
    assert done.returncode == 0 and "needs a GPU" in line and "Recorded on" in done.stdout
    return line


@on_a_cpu
def test_the_layer_comes_from_version_1_on_the_hub(tmp_path, ladder):
    with serve() as server:
        done = ladder(server)
    assert_ran(done, tmp_path / "out", "liger", ORIGIN)
    asked = " ".join(server.requests)
    assert f"/resolve/{COMMITS[1]}/" in asked and COMMITS[2] not in asked and COMMITS[3] not in asked


@on_a_cpu
def test_local_kernels_replaces_the_hub(tmp_path, ladder):
    with serve() as server:
        server.write(tmp_path / "mine")
        done = ladder(server, LOCAL_KERNELS=f"{REPO}={tmp_path / 'mine'}")
    origin = "LigerGEGLUMLP from the folder mine (LOCAL_KERNELS), not from the Hub"
    assert_ran(done, tmp_path / "out", "liger-local", origin)
    assert not server.requests


@on_a_cpu
def test_a_local_folder_of_a_later_version_is_one_line(tmp_path, ladder):
    with serve() as server:
        server.write(tmp_path, version=3)
        done = ladder(server, LOCAL_KERNELS=f"{REPO}={tmp_path}")
    assert done.returncode == 1 and "not the layer of version 1" in one_line(done.stderr)


@on_a_cpu
def test_a_local_triton_build_on_a_cpu_is_one_line(tmp_path, ladder):
    with serve() as server:
        server.write(tmp_path)
    build = tmp_path / "build" / "torch-cpu"
    layers = (build / "layers.py").read_text()
    says = 'raise RuntimeError("0 active drivers ([]). There should only be one.")'  # as Triton does
    (build / "layers.py").write_text(re.sub("return .*", says, layers))
    done = ladder(server, LOCAL_KERNELS=f"{REPO}={build}")
    assert done.returncode == 1 and "Triton, which needs a GPU" in one_line(done.stderr)


@on_a_cpu
@pytest.mark.parametrize(
    ("knobs", "env", "status", "says"),
    [
        pytest.param({}, {"LOCAL_KERNELS": f"{REPO}=/no/such"}, 1, "/no/such", id="local folder missing"),
        pytest.param({}, {"LOCAL_KERNELS": "/no/such"}, 1, f"make it {REPO}=FOLDER", id="local malformed"),
        pytest.param({"trusted": False}, {}, 1, "not list the publisher", id="untrusted"),
        pytest.param({"status": 429}, {}, 0, "limits requests from here (HTTP 429)", id="429"),
        pytest.param({"status": 401}, {}, 1, "refused this login (HTTP 401)", id="401"),
        pytest.param({"status": 503}, {}, 0, "answered HTTP 503", id="503"),
        pytest.param({"build": "torch-cuda"}, {}, 0, "no build for this machine", id="no build"),
        # kernels 0.17.2 then ends its user agent in "; ", which the HTTP client refuses to send.
        pytest.param(
            {}, {"HF_HUB_DISABLE_TELEMETRY": "1"}, 0, "with telemetry off (HF_HUB_DISABLE_TELEMETRY", id="no telemetry"
        ),
        pytest.param({}, NO_HUB, 0, f"{NO_HUB['HF_ENDPOINT']} cannot be reached", id="no network"),
        pytest.param({}, {"HF_HUB_OFFLINE": "1"}, 0, "HF_HUB_OFFLINE is set", id="offline"),
    ],
)
def test_a_failure_is_one_line_with_its_cause(tmp_path, ladder, knobs, env, status, says):
    with serve(**knobs) as server:
        done = ladder(server, **env)
    assert done.returncode == status and says in why_not(done)
    assert not written(tmp_path / "out") and bool(server.requests) == (not env)


@on_a_cpu
def test_offline_with_a_filled_cache_it_runs_or_says_what_to_unset(ladder):
    # kernels 0.17.2 looks version 1 up by a branch name, which its download, by commit, has not left in the cache.
    with serve() as server:
        assert ORIGIN in ladder(server).stdout
    done = ladder(server, HF_HUB_OFFLINE="1")
    assert ORIGIN in done.stdout or "HF_HUB_OFFLINE" in why_not(done)


LIMITED = ConnectionError("Too Many Requests")
LIMITED.response = SimpleNamespace(status_code=429)
UNREACHABLE = pytest.mark.parametrize(
    ("error", "because"),
    [(ConnectionError("no route to host"), "cannot be reached"), (LIMITED, "HTTP 429")],
    ids=["no network", "429"],
)


@pytest.fixture
def load_layer(monkeypatch):
    """The script's `load_layer` on a pretend GPU, where `get_kernel` raises the given error."""
    monkeypatch.delenv("LOCAL_KERNELS", raising=False)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    script = lesson.load("04_liger_mlp")

    def load(error):
        def get_kernel(*_, **__):
            raise error

        monkeypatch.setattr(script, "get_kernel", get_kernel)
        return script.load_layer("hub", "cuda")

    return load


@UNREACHABLE
def test_on_a_gpu_an_unreachable_hub_falls_back_to_the_package(load_layer, error, because):
    package = pytest.importorskip("liger_kernel.transformers.geglu")
    layer, variant, origin = load_layer(error)
    assert layer is package.LigerGEGLUMLP and variant == "liger-package"
    assert origin.startswith("LigerGEGLUMLP from the package liger-kernel ") and because in origin


@UNREACHABLE
def test_on_a_gpu_without_the_package_the_way_out_is_named(load_layer, monkeypatch, error, because):
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.geglu", None)  # importing it raises
    with pytest.raises(CannotRun, match=f"{because}.*uv run --with liger-kernel"):
        load_layer(error)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError(f"Kernel repository '{REPO}' is not from a trusted publisher."), "publisher .* not run"),
        (FileNotFoundError(f"Cannot find a build variant for this system in {REPO}"), "no build for this machine"),
        (TypeError("no such layer"), "does not load .no such layer"),
        (PermissionError(13, "Permission denied", "/cache"), "does not load .*Permission denied"),
    ],
    ids=["untrusted", "no build", "another", "cache"],
)
def test_on_a_gpu_the_hubs_own_answer_is_final(load_layer, error, says):
    with pytest.raises(CannotRun, match=says):
        load_layer(error)
