"""A Hugging Face Hub on the loopback interface with one kernel repo, ours: `get_kernel` downloads from it for real."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

REPO = "kernels-community/liger-kernels"
COMMITS = {version: str(version) * 40 for version in (1, 2, 3)}
LAYERS = """
import torch.nn.functional as F
from torch import nn


class LigerGEGLUMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
"""
STATELESS = "from torch import nn\n\n\nclass LigerGEGLUMLP(nn.Module):\n    pass  # with a config: TypeError\n"


@dataclass
class Hub:
    """What the server holds and how it answers. `requests` are the paths that it was asked for."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    status: int = 200  # any other is the answer to everything
    trusted: bool = True
    build: str = "torch-cpu"

    def files(self, version: int) -> dict[str, bytes]:
        about = {"name": "liger-kernels", "id": f"_liger_kernels_{version}", "version": version, "license": "MIT"}
        sources = {
            "__init__.py": "from . import layers\n",
            "layers.py": LAYERS if version == 1 else STATELESS,
            "metadata.json": json.dumps(about | {"python-depends": [], "backend": {"type": "cpu"}}),
        }
        return {f"build/{self.build}/{name}": text.encode() for name, text in sources.items()}

    def write(self, folder: Path, version: int = 1) -> None:
        """A version on the disk, for LOCAL_KERNELS."""
        for path, body in self.files(version).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(body)

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        self.requests.append(path)
        if self.status != 200:
            return self.status, b"", {}
        match path.replace(REPO, "REPO").strip("/").split("/"):
            case ["api", "organizations", _, "overview"]:  # without the flag, `get_kernel` runs nothing of theirs
                return _json({"trustedKernelPublisher": self.trusted})
            case ["api", "kernels", "REPO", "refs"]:  # a version is a branch, and its files are asked for by commit
                heads = [{"name": f"v{v}", "ref": f"refs/heads/v{v}", "targetCommit": c} for v, c in COMMITS.items()]
                return _json({"branches": heads, "converts": [], "tags": []})
            case ["api", "kernels", "REPO", "tree", _, "build"]:  # which builds there are
                return _json([{"type": "directory", "path": f"build/{self.build}", "oid": "0" * 40}])
            case ["api", "kernels", "REPO", "tree", commit]:  # every file, of which the client takes one build's
                files = self.files(int(commit[0])).items()
                return _json([{"type": "file", "path": p, "size": len(b), "oid": _oid(b)} for p, b in files])
            case ["kernels", "REPO", "resolve", commit, *name]:
                body = self.files(int(commit[0]))["/".join(name)]
                # A file without these two is refused: they name its blob and its snapshot in the client's cache.
                return 200, body, {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": commit}
        return 404, b"", {}


def _json(value: object) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def serve(**knobs) -> Iterator[Hub]:
    """A running Hub, whose `url` is for HF_ENDPOINT. knobs: fields of Hub."""
    hub = Hub(**knobs)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body, headers = hub.answer(urlsplit(self.path).path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # the client looks at a file's headers before it asks for the file

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
