"""Our kernel: its arithmetic in Triton's interpreter on the CPU, and on a GPU at every kind of shape."""

import gzip
import json
import os
import subprocess
import sys

from common import lesson, reading, work
from common.session import Result

import pytest
import torch
import torch.nn.functional as F
from conftest import H200, ROOT, one_line, run

RECORDED = H200 / "05_fused_mlp" / "64x128x768x3072_bf16_warm_triton.json.gz"
INTERPRET = """
import json, sys, torch
import torch.nn.functional as F
from common import lesson
ours = lesson.load("05_fused_mlp")
errors = []
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)  # fills what is not initialized with NaN: an element not written shows
assert torch.ones(1).new_empty(8).isnan().all()
for M, D, H in json.loads(sys.argv[1]):
    x, w = torch.randn(M, D), torch.randn(2, H, D)
    if M == 7:  # rows of a wider tensor, and columns of another
        x = torch.randn(M, 2 * D)[:, ::2]
    out = ours.geglu_up(x, w)
    ref = F.gelu(x.double() @ w[0].double().T, approximate="tanh") * (x.double() @ w[1].double().T)
    errors.append(((out - ref).norm() / max(ref.norm(), 1e-30)).item())
print(json.dumps(errors))
"""


def test_the_arithmetic_in_the_interpreter():
    shapes = [(1, 16, 16), (7, 40, 24), (33, 65, 70), (64, 96, 128), (0, 16, 16)]
    done = subprocess.run(
        [sys.executable, "-c", INTERPRET, json.dumps(shapes)],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(error < 1e-6 for error in json.loads(done.stdout)), done.stdout


def test_without_a_gpu_the_recorded_trace_is_shown(call, tmp_path):
    code, out, err = call("05_fused_mlp", "--out", tmp_path)
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert (code, err) == (0, "") and "This cannot run here: our kernel is Triton, which needs a GPU." in out
    assert "geglu_gemm_tma" in out and "Recorded on one NVIDIA H200: the same command" in out


def test_how_a_run_on_a_gpu_ends(monkeypatch, call, tmp_path):
    """What follows the run itself, which left the recorded trace."""
    recorded = tmp_path / "05_fused_mlp" / RECORDED.name
    recorded.parent.mkdir()
    recorded.write_bytes(RECORDED.read_bytes())
    own = tmp_path / "03_simple_mlp" / "64x128x768x3072_bf16_warm_eager.json"
    own.parent.mkdir()
    own.write_bytes(gzip.decompress((H200 / "03_simple_mlp" / f"{own.name}.gz").read_bytes()))
    ours = lesson.load("05_fused_mlp")
    monkeypatch.setattr(lesson.machine, "choose", lambda requested: ("cuda", ""))
    monkeypatch.setattr(lesson.machine, "check_dtype", lambda *_: None)
    monkeypatch.setattr(lesson.machine, "check_compiler", lambda *_: None)
    monkeypatch.setattr(lesson.machine, "check_memory", lambda *_: None)
    monkeypatch.setattr(lesson.machine, "name", lambda device: "a GPU")
    monkeypatch.setattr(lesson.session, "run", lambda *_: Result(recorded, 1e-3, 1e-3, 162.3, 20))
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: self)
    monkeypatch.setattr(ours, "triton", object())
    code, out, err = call("05_fused_mlp", "--out", tmp_path)
    assert (code, err) == (0, "") and "\nWhat stands out:\n1. " in out
    assert out.index("What stands out") < out.index("Beside the rungs before") < out.index("Next:")
    assert f"A  {own}\n" in out and "B  traces/recorded/h200/03_simple_mlp" in out and f"D  {recorded}\n" in out


@pytest.fixture(scope="module")
def ours():
    return lesson.load("05_fused_mlp")


@pytest.mark.parametrize(
    ("x", "weight", "says"),
    [
        ((4, 8), (2, 8, 9), r"x is \[M, D\] and weight \[2, H, D\], not \[4, 8\] and \[2, 8, 9\]"),
        ((8,), (2, 8, 8), r"x is \[M, D\]"),
        ((4, 8), (2, 8, 8), "x and weight are on one GPU, not on cpu and cpu"),
    ],
)
def test_what_the_op_does_not_take(ours, x, weight, says):
    with pytest.raises(ValueError, match=says):
        ours.geglu_up(torch.ones(x, dtype=torch.bfloat16), torch.ones(weight, dtype=torch.bfloat16))


def test_dtypes_and_gradients_that_it_does_not_take(ours):
    with pytest.raises(ValueError, match="both bf16 or both fp16"):
        ours.geglu_up(torch.ones(4, 8), torch.ones(2, 8, 8))
    mlp = ours.FusedGeGLUMLP(ours.SimpleGeGLUMLP(8, 16))
    with pytest.raises(RuntimeError, match=r"forward only: call it under torch.no_grad\(\)"):
        mlp(torch.ones(2, 8))


def test_the_fake_has_the_shape_that_torch_compile_needs(ours):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        out = ours.geglu_up(torch.empty(5, 8, dtype=torch.float16), torch.empty(2, 24, 8, dtype=torch.float16))
    assert out.shape == (5, 24) and out.dtype == torch.float16


def test_the_recorded_trace_has_two_kernels_and_no_activation():
    steps = work.per_step(reading.read(RECORDED))
    assert (steps.kernels, steps.copies) == (2, 0)
    assert [row.family for row in steps.rows if row.family != "memset"] == ["gemm", "gemm"]
    assert any(row.op == "ladder::geglu_up" and row.dims == [[8192, 768], [2, 3072, 768]] for row in steps.rows)


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("M", "D", "H"),
    [
        *(
            (1, 768, 3072),
            (16, 768, 3072),
            (128, 768, 3072),
            (1000, 1000, 3000),
            (8192, 768, 3072),
            (4096, 3584, 14336),
        ),
        *((77, 100, 37), (3, 1, 1), (129, 65, 130), (2, 8, 8)),  # through pointers, and tiles that hang over
    ],
)
def test_no_less_exact_than_eager_and_every_element_written(ours, M, D, H, dtype):
    x = torch.randn(M, D, device="cuda").to(dtype)
    w = (torch.randn(2, H, D, device="cuda") / D**0.5).to(dtype)
    ref = F.gelu(x.double() @ w[0].double().T, approximate="tanh") * (x.double() @ w[1].double().T)
    eager = F.gelu(x @ w[0].T, approximate="tanh") * (x @ w[1].T)
    poison = torch.full((M, H), float("nan"), device="cuda", dtype=dtype)
    del poison  # its memory is the next to be given out
    out = ours.geglu_up(x, w)
    error, eagers = (((o.double() - ref).norm() / ref.norm()).item() for o in (out, eager))
    assert out.isfinite().all() and error <= eagers * 1.02, (error, eagers)
    assert torch.equal(out, ours.geglu_up(x, w))


@pytest.mark.gpu
def test_views_empty_inputs_and_large_values(ours):
    w = torch.randn(2, 64, 96, device="cuda", dtype=torch.float16)
    wide = torch.randn(50, 2 * 96, device="cuda", dtype=torch.float16)
    for x in (wide[:, ::2], wide[:, 96:], wide[::2, :96], wide[:, 1:97]):
        ref = F.gelu(x.double() @ w[0].double().T, approximate="tanh") * (x.double() @ w[1].double().T)
        assert ((ours.geglu_up(x, w).double() - ref).norm() / ref.norm()).item() < 2e-3
    assert ours.geglu_up(wide[:0, :96], w).shape == (0, 64)
    large = torch.full((16, 96), 600.0, device="cuda", dtype=torch.float16)  # gate near 60,000: its cube is 2e14
    w = torch.stack([torch.full((64, 96), 1.0), torch.full((64, 96), 1e-5)]).to("cuda", torch.float16)
    assert torch.allclose(
        ours.geglu_up(large, w).double(),
        large.double() @ w[0].double().T * (large.double() @ w[1].double().T),
        rtol=2e-3,
    )
    assert (ours.geglu_up(-large, w) == 0).all()


@pytest.mark.gpu
def test_torch_compile_holds_the_op(ours):
    mlp = ours.FusedGeGLUMLP(ours.SimpleGeGLUMLP(128, 256).to("cuda", torch.bfloat16))
    x = torch.randn(4, 8, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.allclose(torch.compile(mlp, fullgraph=True)(x), mlp(x), rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_fp32_is_one_line(tmp_path):
    done = run("05_fused_mlp.py", "--dtype", "fp32", "--out", tmp_path)
    assert done.returncode == 1 and "use --dtype bf16 or fp16" in one_line(done.stderr)


@pytest.mark.gpu
def test_the_lesson_on_a_gpu(tmp_path):
    done = run("05_fused_mlp.py", "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "2 kernels" in done.stdout
