"""Record the situations that the checks of `explain` and the parts of `decode` are tested on. Needs an NVIDIA GPU.

    uv run -m tests.traces.record situations.tar
    tar xf situations.tar -C tests/traces

Each is a small workload of its own, three steps (cold_cache: nine) after a warm-up; scrubbed like the lessons' traces.
"""

import gzip
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from common import artifacts

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, schedule

BF16 = torch.bfloat16


def tensor(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def pointwise() -> Callable:
    """Three elementwise kernels, each reading what the one before wrote."""
    x = tensor(8192, 4096)
    return lambda: F.gelu(x).mul(x).add(x)


def unrelated() -> Callable:
    """Elementwise kernels in a row whose shapes rule out that one reads the other's output."""
    x, y = tensor(8192, 4096), tensor(4096, 6144)
    return lambda: (F.gelu(x), F.relu(y), torch.exp(x))


def tiny() -> Callable:
    x = tensor(64)

    def step() -> torch.Tensor:
        y = x
        for _ in range(100):
            y = y + 1
        return y

    return step


def large() -> Callable:
    """As many launches as `tiny`, each with work to do."""
    x = tensor(8192, 8192)

    def step() -> torch.Tensor:
        for _ in range(100):
            x.add_(1)
        return x

    return step


def clone() -> Callable:
    """A copy that the program asks for."""
    x, w = tensor(4096, 4096), tensor(4096, 4096)
    return lambda: torch.mm(x.clone(), w)


def zeros() -> Callable:
    """A memset that the program asks for, in front of a GEMM."""
    x, w, out = tensor(512, 512), tensor(512, 512), tensor(4096, 4096)
    return lambda: (out.zero_(), torch.mm(x, w))


def attention(masked_fill: Callable) -> Callable:
    q, k, v = (tensor(4, 16, 1024, 64) for _ in range(3))
    mask = torch.ones(1024, 1024, device="cuda", dtype=torch.bool).triu(1)

    def step() -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * 0.125
        return torch.matmul(torch.softmax(masked_fill(scores, mask, float("-inf")), dim=-1), v)

    return step


def sdpa(backend: SDPBackend) -> Callable:
    q, k, v = (tensor(4, 16, 1024, 64) for _ in range(3))

    def step() -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return step


def fp32(tf32: bool) -> Callable:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    x, w = tensor(2048, 2048, dtype=torch.float32), tensor(2048, 2048, dtype=torch.float32)
    return lambda: torch.mm(x, w)


def item() -> Callable:
    """A value read back in the middle of a step, while the GPU is busy."""
    x, w = tensor(4096, 4096), tensor(4096, 4096)
    return lambda: torch.mm(x, w) * (1 if torch.mm(x, w).sum().item() > 0 else 2)


def streams() -> Callable:
    """Two kernels that leave room for each other, on two streams."""
    x, y = tensor(1024, 2048, dtype=torch.float32), tensor(1024, 2048, dtype=torch.float32)
    other = torch.cuda.Stream()

    def step() -> None:
        other.wait_stream(torch.cuda.current_stream())
        for _ in range(4):
            torch.cumsum(x, 1)
            with torch.cuda.stream(other):
                torch.cumsum(y, 1)
        torch.cuda.current_stream().wait_stream(other)

    return step


def cold_cache() -> Callable:
    """The same kernel on the same data at every step, at some of them after the data left the cache."""
    x, big, calls = tensor(12 * 2**20), tensor(2**27), iter(range(100))

    def step() -> None:
        if next(calls) % 4 == 3:
            big.zero_()
        x.add_(1)

    return step


def recompile() -> Callable:
    """Another shape at every call, behind a compile that may not be dynamic."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64  # more than there are calls
    torch._inductor.config.triton.autotune_pointwise = False  # no trial runs in the trace
    fn = torch.compile(lambda x: F.gelu(x) * x, dynamic=False)
    sizes = iter(range(1, 100))
    return lambda: fn(tensor(256 * next(sizes), 256))


def regions() -> Callable:
    """Two compiled regions, for a graph break: nothing is compiled inside the window."""
    torch._dynamo.reset()

    @torch.compile
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x) * x
        torch._dynamo.graph_break()
        return y.relu() + x

    x = tensor(2048, 2048)
    return lambda: fn(x)


def convolution() -> Callable:
    x, conv = tensor(32, 64, 56, 56), torch.nn.Conv2d(64, 128, 3).to("cuda", BF16)
    return lambda: torch.relu(conv(x))


def reductions() -> Callable:
    x, w = tensor(2048, 2048), tensor(2048)
    y = tensor(2048, 2048, dtype=torch.float32)

    def step() -> None:
        F.layer_norm(x, (2048,), w, w)
        F.softmax(x, -1)
        x.sum()
        y.mean(1)
        x.amax(0)
        y.argmax(1)
        torch.cumsum(y, 1)
        torch.topk(y, 8)
        F.dropout(x, 0.5)
        torch.where(x > 0, x, 0.0)
        x.index_select(0, torch.arange(64, device="cuda"))
        torch.cat([x, x])
        x.to(torch.float32)
        F.silu(y)
        F.embedding(torch.zeros(64, device="cuda", dtype=torch.long), x)

    return step


def gemms() -> Callable:
    """Matrix products of every layout, dtype and epilogue, to read their names beside their shapes and strides."""
    torch.backends.cuda.matmul.allow_tf32 = True
    kinds = {dtype: tensor(4, 2048, 2048, dtype=dtype) for dtype in (BF16, torch.float16, torch.float32)}
    f8 = tensor(2, 2048, 2048).to(torch.float8_e4m3fn)
    i8 = torch.ones(2048, 2048, device="cuda", dtype=torch.int8)
    one = torch.ones((), device="cuda")
    big = tensor(16, 65536)
    double = tensor(1024, 1024, dtype=torch.float64)

    def step() -> None:
        for dtype, (a, b, c, _) in kinds.items():
            for left in (a, a.t()):
                for right in (b, b.t()):
                    torch.mm(left, right)
            torch.addmm(c, a, b)
            torch.addmm(c[0], a, b.t())
            torch.mm(a[:, :64], b[:64])
            torch.mm(a[:16], b)
            torch.mm(a[:1], b)
            torch.bmm(kinds[dtype], kinds[dtype])
            if dtype != torch.float32:
                torch._addmm_activation(c[0], a, b.t(), use_gelu=True)
                torch._addmm_activation(c[0], a, b.t(), use_gelu=False)
        torch._scaled_mm(f8[0], f8[1].t(), one, one, out_dtype=BF16)
        torch._int_mm(i8, i8.t())
        torch.mm(big, big.t())
        torch.mm(double, double)

    return step


SITUATIONS: dict[str, Callable[[], Callable]] = {
    "pointwise": pointwise,
    "unrelated": unrelated,
    "tiny": tiny,
    "large": large,
    "clone": clone,
    "zeros": zeros,
    "attention_naive": lambda: attention(torch.Tensor.masked_fill),
    "attention_inplace": lambda: attention(torch.Tensor.masked_fill_),
    "sdpa_math": lambda: sdpa(SDPBackend.MATH),
    "sdpa_efficient": lambda: sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "sdpa_flash": lambda: sdpa(SDPBackend.FLASH_ATTENTION),
    "sdpa_cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION),
    "fp32": lambda: fp32(tf32=False),
    "tf32": lambda: fp32(tf32=True),
    "item": item,
    "streams": streams,
    "cold_cache": cold_cache,
    "recompile": recompile,
    "regions": regions,
    "convolution": convolution,
    "reductions": reductions,
    "gemms": gemms,
}


def record(build: Callable[[], Callable], folder: Path, active: int) -> str:
    step = build()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.no_grad():
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        with profile(
            activities=activities, schedule=schedule(wait=1, warmup=1, active=active), record_shapes=True
        ) as prof:
            for _ in range(2 + active):
                step()
                prof.step()
    prof.export_chrome_trace(str(folder / "trace.json"))
    return artifacts.scrub((folder / "trace.json").read_text(), {})


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: uv run -m tests.traces.record OUT.tar")
    with tempfile.TemporaryDirectory() as name, tarfile.open(sys.argv[1], "w") as tar:
        for situation, build in SITUATIONS.items():
            print(situation, flush=True)
            active = 9 if situation == "cold_cache" else 3
            path = Path(name) / f"{situation}.json.gz"
            path.write_bytes(gzip.compress(record(build, Path(name), active).encode(), 9, mtime=0))
            tar.add(path, f"h200/{path.name}")


if __name__ == "__main__":
    main()
