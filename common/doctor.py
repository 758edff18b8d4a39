"""What this machine can do for the lessons: a check a line, each with the way out. Torch starts in a child process."""

import http.client
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from getpass import getuser
from pathlib import Path

from common import hub
from common.checks_profiler import LOSES
from common.recorded import ROOT

import psutil
from huggingface_hub import constants

PROBE_S = 120  # torch's first import from a cold disk takes half a minute
HUB_S = 5
MARK = "probe: "  # before what the probe tells
MEMORY = 3e9  # bytes free: the articles' largest shape takes 1.2 GB on a CPU
DISK = 2e8
OK, NOTE, BAD = "ok", "note", "FAIL"


@dataclass(frozen=True)
class Check:
    id: str
    state: str  # ok, note (it is so, and the lessons know what to do), FAIL
    says: str
    way_out: str = ""


@dataclass(frozen=True)
class Verdict:
    """Why commands of the lessons cannot run here as asked."""

    commands: str
    why: str


def diagnose(folder: Path) -> tuple[list[Check], list[Verdict]]:
    """The checks, and what cannot run here as asked. `folder` is where traces go."""
    facts = _probe()
    checks = [_torch(facts), _gpu(facts), _profiler(facts), _compiler(facts, "compile"), _compiler(facts, "triton")]
    checks.append(_cache("triton-cache", "TRITON_CACHE_DIR", Path(os.path.expanduser("~"), ".triton", "cache")))
    checks.append(_cache("inductor-cache", "TORCHINDUCTOR_CACHE_DIR", _inductor()))
    checks += [_hub(), _kernel(), _local(), _package(), _system(), _memory(facts)]
    checks += [_disk("traces", folder), _disk("temporary", Path(tempfile.gettempdir()))]
    return checks, _verdicts(facts, {check.id: check for check in checks})


def records(checks: list[Check], verdicts: list[Verdict]) -> dict:
    """`doctor --json`."""
    return {"checks": [asdict(check) for check in checks], "cannot_run": [asdict(one) for one in verdicts]}


def _probe() -> dict:
    """What torch says of itself, or {"error": why it says nothing}."""
    caches = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")  # a check of their own
    env = {key: value for key, value in os.environ.items() if key not in caches}
    command = [sys.executable, "-m", "common.probe"]
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        return {"error": f"torch did not answer in {PROBE_S} s"}
    lines = done.stdout.decode(errors="replace").splitlines()
    told = next((line.removeprefix(MARK) for line in lines if line.startswith(MARK)), None)
    if told is None:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {"error": f"torch does not start: {last[0][:200] if last else f'status {done.returncode}'}"}
    return json.loads(told)


def _torch(facts: dict) -> Check:
    if "error" in facts:
        return Check("torch", BAD, facts["error"], "uv sync; if a GPU hangs, nvidia-smi says by whom it is held")
    versions = facts["versions"]
    triton = f"Triton {versions['triton']}" if versions["triton"] else "no Triton"
    return Check("torch", OK, f"torch {versions['torch']}, {triton}, Python {versions['python']}")


def _smi() -> str | None:
    """The NVIDIA GPU and driver, as nvidia-smi names them."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "a GPU whose nvidia-smi does not answer"
    except OSError:
        return None
    first = done.stdout.decode(errors="replace").partition("\n")[0].split(", ")
    return ", driver ".join(first) if done.returncode == 0 and len(first) == 2 else None


def _gpu(facts: dict) -> Check:
    there = _smi()
    if facts.get("device") == "cuda":
        if facts["dtype"]:
            return Check("gpu", NOTE, facts["dtype"], "add --dtype fp16")
        return Check("gpu", OK, f"{there or facts['name']}; torch is built for CUDA {facts['versions']['cuda']}")
    why = facts.get("why", "torch does not start")
    if there:
        return Check("gpu", BAD, f"{there} is here, and torch does not use it", why)
    return Check("gpu", NOTE, f"no GPU ({why})", "lessons profile the CPU and show what was recorded on a GPU")


def _profiler(facts: dict) -> Check:
    if "error" in facts:
        return Check("profiler", BAD, "not tried, for torch does not start", "see torch above")
    if facts["recorded"]:
        return Check("profiler", OK, f"a profiled launch shows up ({facts['device']})")
    return Check("profiler", BAD, "a profiled launch leaves no event on the GPU", f"likely: {LOSES}")


def _compiler(facts: dict, key: str) -> Check:
    """Of C++ for --compile on a CPU; of C for --compile and Triton on a GPU."""
    gpu = facts.get("device") == "cuda"
    if key == "triton" and not gpu:
        return Check("triton", NOTE, "not needed: Triton runs on a GPU")
    if text := facts.get(key):
        what, _, way_out = text.partition("; ")
        return Check(key, BAD, what, way_out or "install it")
    if "error" in facts:
        return Check(key, NOTE, "not tried, for torch does not start", "see torch above")
    return Check(key, OK, f"a {'C' if gpu else 'C++'} compiler and Python's headers are here")


def _inductor() -> Path:
    try:
        user = getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / f"torchinductor_{user}"


def _cache(id_: str, variable: str, usual: Path) -> Check:
    folder = Path(os.environ.get(variable) or usual)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return Check(id_, BAD, f"{folder} cannot be written to: {error.strerror}", f"set {variable} to another folder")
    return Check(id_, OK, f"{folder} can be written to")


def _hub() -> Check:
    if constants.HF_HUB_OFFLINE:
        return Check("hub", NOTE, "HF_HUB_OFFLINE is set", "04 uses LOCAL_KERNELS or the liger-kernel package")
    asked: list[str] = []
    thread = threading.Thread(target=lambda: asked.append(_ask(constants.ENDPOINT)), daemon=True)
    thread.start()
    thread.join(2 * HUB_S)  # a server may answer a byte at a time
    if reason := asked[0] if asked else "no answer":
        way_out = f"check network and proxy, or {hub.PACKAGE}"
        return Check("hub", NOTE, f"{constants.ENDPOINT} cannot be reached ({reason})", way_out)
    return Check("hub", OK, f"{constants.ENDPOINT} answers")


def _ask(endpoint: str) -> str:
    """Why it does not answer; "" where it does, with whatever status."""
    try:
        with urllib.request.urlopen(endpoint, timeout=HUB_S):
            return "" if endpoint.startswith("http") else "no http address"
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", "") or error or type(error).__name__)


def _kernel() -> Check:
    found = list(Path(constants.HF_HUB_CACHE).glob(f"*--{hub.REPO.replace('/', '--')}"))
    if found:
        return Check("kernel", OK, f"{hub.REPO} is in the cache ({constants.HF_HUB_CACHE})")
    return Check("kernel", NOTE, f"{hub.REPO} is not in the cache", "04 fetches it at its first run on a GPU")


def _local() -> Check:
    text, folder = os.environ.get("LOCAL_KERNELS"), hub.local_folder()
    if not text:
        return Check(
            "local", NOTE, "LOCAL_KERNELS is not set", f"a folder of your own: LOCAL_KERNELS={hub.REPO}=FOLDER"
        )
    if any("=" not in entry for entry in text.split(":")):
        return Check("local", BAD, f"LOCAL_KERNELS is {text}", f"make it {hub.REPO}=FOLDER")
    if folder is None:
        return Check("local", NOTE, f"LOCAL_KERNELS names other kernels than {hub.REPO}")
    if not folder.is_dir():
        return Check("local", BAD, f"LOCAL_KERNELS names {folder}, which is no folder", "correct or unset it")
    return Check("local", OK, f"LOCAL_KERNELS names {folder}")


def _package() -> Check:
    if importlib.util.find_spec("liger_kernel"):
        return Check("liger", OK, "the liger-kernel package is installed")
    return Check("liger", NOTE, "the liger-kernel package is not installed", hub.PACKAGE)


def _system() -> Check:
    name = f"{platform.system()} {platform.release()}"
    if sys.platform == "win32":
        return Check("system", NOTE, f"{name}: torch from PyPI is for CPUs here", "pytorch.org has builds with CUDA")
    if "microsoft" in platform.release().lower():
        way_out = "keep the Windows driver current: it brings CUDA and CUPTI into WSL"
        return Check("system", NOTE, f"{name}: WSL, where the profiler depends on the Windows driver", way_out)
    return Check("system", OK, name)


def _memory(facts: dict) -> Check:
    free = {"memory": psutil.virtual_memory().available}
    if facts.get("free_bytes"):
        free["GPU memory"] = facts["free_bytes"]
    says = ", ".join(f"{value / 1e9:.1f} GB of {what} free" for what, value in free.items())
    if min(free.values()) < MEMORY:
        return Check("memory", BAD, f"{says}; the articles' shapes want {MEMORY / 1e9:.0f} GB", "use smaller sizes")
    return Check("memory", OK, says)


def _disk(id_: str, folder: Path) -> Check:
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        return Check(id_, BAD, f"{there} cannot be written to: {error.strerror}", "--out and TMPDIR name other folders")
    if free < DISK:
        return Check(
            id_, BAD, f"{free / 1e9:.1f} GB free in {there}", "make room, or --out and TMPDIR name other folders"
        )
    return Check(id_, OK, f"{free / 1e9:.1f} GB free in {there}")


def _verdicts(facts: dict, checks: dict[str, Check]) -> list[Verdict]:
    def bad(*ids: str) -> str:
        return next((check.says for id_, check in checks.items() if id_ in ids and check.state == BAD), "")

    found, gpu = [], facts.get("device") == "cuda"
    if why := bad("torch", "profiler", "traces", "temporary", "inductor-cache"):
        found.append(Verdict("every lesson", why))
    if why := bad("memory"):
        found.append(Verdict("some lessons at the articles' shapes", why))
    if why := bad("gpu"):
        found.append(Verdict("any lesson with --device cuda", why))
    if gpu and facts["dtype"]:
        found.append(Verdict("every lesson without --dtype fp16", facts["dtype"]))
    if why := bad("compile", *["triton-cache"] * gpu):
        found.append(Verdict("01, 02 and 03 with --compile", why))
    if why := bad("local", *["triton", "triton-cache"] * gpu):
        found.append(Verdict("04_liger_mlp.py", why))
    elif gpu and not any(checks[id_].state == OK for id_ in ("hub", "local", "liger")):
        found.append(Verdict("04_liger_mlp.py", f"{checks['hub'].says}, and {checks['liger'].says}"))
    if gpu and (why := bad("triton", "triton-cache")):
        found.append(Verdict("05_fused_mlp.py", why))
    return found
