"""What tests share: running a lesson as its reader does, and reading what it wrote."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

from common import lesson

import pytest

ROOT = Path(__file__).parent.parent
H200 = ROOT / "traces" / "recorded" / "h200"


def run(*words: str | Path, env: dict[str, str] | None = None, **how) -> subprocess.CompletedProcess:
    """`uv run WORDS` without uv: this Python, from the project's root."""
    command = [sys.executable, *(str(word) for word in words)]
    # A shared machine may set either; a lesson's reader has neither.
    clean = {k: v for k, v in os.environ.items() if k not in ("LOCAL_KERNELS", "TRITON_INTERPRET")}
    return subprocess.run(
        command, cwd=ROOT, env=clean | (env or {}), capture_output=True, text=True, timeout=300, **how
    )


@pytest.fixture
def call(monkeypatch, capsys):
    """A lesson's main() in this process, for the cases where a process of its own would only cost time."""

    def _call(script: str, *flags: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [script, *(str(flag) for flag in flags)])
        try:
            lesson.load(script.removesuffix(".py")).main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code
        out, err = capsys.readouterr()
        return code, out, err

    return _call


def one_line(text: str) -> str:
    """`text`, which must be one line and no traceback."""
    assert text.count("\n") == 1 and text.endswith("\n"), text
    assert "Traceback" not in text
    return text.strip()


def read_json(path: Path) -> dict:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


@pytest.fixture(scope="session")
def compiled_caches(tmp_path_factory) -> dict[str, str]:
    """One Inductor cache for the whole session, apart from the user's."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}
