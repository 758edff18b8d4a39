"""Which device, dtype and size a run can have on this machine."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import psutil
import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class CannotRun(RuntimeError):
    """The input or the machine is at fault. The text is one line: what is wrong and what to do."""


def choose(requested: str | None) -> tuple[str, str]:
    """The device to run on, "cuda" or "cpu", and why it is not a GPU ("" where it is one).

    Raises CannotRun where `cuda` was asked for in vain.
    """
    if requested == "cpu":
        return "cpu", "--device cpu was asked for"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own words on a bad driver; ours follow
        if torch.cuda.is_available():
            return "cuda", ""
        why = _why_no_gpu()
    if requested == "cuda":
        raise CannotRun(f"--device cuda: {why}")
    return "cpu", why


def _why_no_gpu() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built for CPUs only; install a build with CUDA (pytorch.org)"
    try:
        torch.cuda.init()
        text = ""
    except RuntimeError as error:
        text = str(error)
    if "too old" in text:
        found = re.search(r"found version (\d+)", text)
        speaks = f" (it speaks CUDA {int(found[1]) // 1000}.{int(found[1]) % 1000 // 10})" if found else ""
        needs = f"torch {torch.__version__} needs CUDA {torch.version.cuda}"
        return f"the NVIDIA driver is too old{speaks} and {needs}; install a newer driver (nvidia.com/drivers)"
    if "no NVIDIA driver" in text:
        return "no NVIDIA driver was found on this machine"
    return f"torch sees no GPU ({text.splitlines()[0][:120] if text else 'is CUDA_VISIBLE_DEVICES empty?'})"


def check_dtype(device: str, dtype: str) -> None:
    if device == "cuda" and dtype == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise CannotRun(f"{torch.cuda.get_device_name()} has no bf16 units (Ampere, 2020, was first); use --dtype fp16")


def check_memory(device: str, elements: int, dtype: str) -> None:
    """`elements`: the numbers that one forward holds at once. The check in a wider dtype holds twice as many bytes."""
    needed = 3 * elements * DTYPES[dtype].itemsize
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    if needed > free:
        name = "this GPU" if device == "cuda" else "this machine"
        wanted = f"{needed / 1e9:,.0f}" if needed < 1e21 else f"{needed / 1e9:.0e}"
        raise CannotRun(f"needs {wanted} GB, {name} has {free / 1e9:,.1f} GB free; use smaller sizes")


def check_cache() -> None:
    """Inductor makes its cache folder when it is imported, and torch.profiler imports it in every run."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    try:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun(f"TORCHINDUCTOR_CACHE_DIR is {folder}: {error.strerror}; set it to a folder") from None


def check_compiler(device: str, what: str) -> None:
    """torch.compile on a CPU builds C++, Triton on a GPU a small launcher in C; both against Python's headers."""
    if device == "cpu":
        usual, package = ("clang++" if sys.platform == "darwin" else "cl" if os.name == "nt" else "g++"), "g++"
        names = [os.environ.get("CXX", "").strip() or usual]
    else:
        own = os.environ.get("CC", "").strip()
        names, package = [own] if own else ["gcc", "clang", "cc"], "gcc"
    names = [name.split()[0] for name in names]  # "ccache g++", "g++ -O2"
    found = next((path for name in names if (path := shutil.which(name))), None)
    language, variable = ("C++", "CXX") if device == "cpu" else ("C", "CC")
    way_out = f"install one (Debian, Ubuntu: apt install {package}) or set {variable}"
    if found is None:
        raise CannotRun(f"{what} needs a {language} compiler and {names[0]} is not here; {way_out}")
    if os.name != "nt" and subprocess.run([found, "--version"], capture_output=True).returncode:
        raise CannotRun(f"{what} needs a {language} compiler and {found} does not work; {way_out}")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        way_out = "Debian, Ubuntu: apt install python3-dev; or let uv bring a Python with them: uv python install"
        raise CannotRun(f"{what} needs Python's C headers and they are not here ({way_out})")


def versions() -> dict[str, str | None]:
    try:
        import triton
    except ImportError:  # not on macOS, nor on Windows
        found = None
    else:
        found = triton.__version__
    return {
        "torch": torch.__version__,
        "triton": found,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}, {threads} thread{'s' * (threads != 1)})"
