"""Our kernel: its arithmetic in Triton's interpreter on the CPU, and on a GPU at every kind of shape."""

import gzip
import json
import os
import re
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
COMPILE = """
import json, triton, fused_gluon
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
def descriptor(rows, columns):
    return f"tensordesc<bf16[{rows}, {columns}],{gl.NVMMASharedLayout(min(2 * columns, 128), 16, 2)!r}>"
def compiled(kernel, blocks, **constants):
    fn = kernel.fn.fn
    types = [*(descriptor(*block) for block in blocks), "i32", "i32", "i32"]
    signature = dict(zip(fn.arg_names, types)) | dict.fromkeys(constants, "constexpr")
    source = GluonASTSource(fn, signature, {(fn.arg_names.index(name),): value for name, value in constants.items()})
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    ptx = done.asm["ptx"]
    return {"wgmma": "wgmma.mma_async" in ptx, "wait": "griddepcontrol.wait" in ptx,
            "launch_dependents": "griddepcontrol.launch_dependents" in ptx, "shared": done.metadata.shared}
print(json.dumps([
    compiled(fused_gluon.geglu_gemm_gluon, [(128, 64), (128, 64), (64, 128)], BN=128, STAGES=4, SHAPED=True),
    compiled(fused_gluon.down_gemm_gluon, [(64, 64), (256, 64), (64, 64)], GROUPS=3, BN=256, STAGES=3, SHAPED=True),
]))
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
    assert (code, err) == (0, "") and "This cannot run here: our kernels are Triton, which needs a GPU." in out
    assert "geglu_gemm_tma" in out and "Recorded on one NVIDIA H200: the same command" in out


def test_how_a_run_on_a_gpu_ends(monkeypatch, call, tmp_path):
    """What follows the run itself, which left the recorded trace."""
    recorded = tmp_path / "05_fused_mlp" / RECORDED.name
    recorded.parent.mkdir()
    recorded.write_bytes(RECORDED.read_bytes())
    own = tmp_path / "03_simple_mlp" / "64x128x768x3072_bf16_warm_eager.json"
    own.parent.mkdir()
    own.write_bytes(gzip.decompress((H200 / "03_simple_mlp" / f"{own.name}.gz").read_bytes()))
    package = tmp_path / "04_liger_mlp" / "64x128x768x3072_bf16_warm_liger-package.json"
    package.parent.mkdir()
    package.write_bytes(gzip.decompress((H200 / "04_liger_mlp" / f"{package.name}.gz").read_bytes()))
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
    assert f"A  {own}\n" in out and "B  traces/recorded/h200/03_simple_mlp" in out and f"C  {package}\n" in out
    assert re.search(r"D  traces/recorded/h200/05_fused_mlp/\S+_gluon\.json\.gz \(recorded\)\n", out)
    assert f"E  {recorded}\n" in out
    kernels, moved = (next(x for x in out.splitlines() if x.startswith(row)) for row in ("of them k", "of it inter"))
    assert re.findall(r"(\d) ?(?:\(|  |$)", kernels) == ["5", "4", "4", "2", "2"]
    # x once more, and 8 times a matrix of 8192 x 3072 in bf16; 6 times; once written and once read
    assert re.findall(r"([\d.]+) MB", moved) == ["415.2", "314.6", "314.6", "100.7", "100.7"]


def test_a_broken_trace_of_the_readers_own_is_left_out(call, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    files = [
        tmp_path / f"{name}.json"
        for name in (
            "03_simple_mlp/64x128x768x3072_bf16_warm_eager",
            "04_liger_mlp/64x128x768x3072_bf16_warm_liger",
            "04_liger_mlp/64x128x768x3072_bf16_warm_liger-package",
        )
    ]
    for file, text in zip(files, ("junk", '{"traceEvents": []}', '{"traceEvents": ['), strict=True):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    code, out, err = call("05_fused_mlp", "--out", tmp_path)
    assert (code, err) == (0, "") and out.count("Left out: ") == 3
    assert f"Left out: {files[0]}: no list of events" in out
    assert f"Left out: {files[1]}: it is no trace of a lesson" in out
    assert "A  traces/recorded/h200/03_simple_mlp" in out and "C  traces/recorded/h200/04_liger_mlp" in out


@pytest.fixture(scope="module")
def ours():
    return lesson.load("05_fused_mlp")


def test_the_kernels_in_gluon_compile_for_hopper(tmp_path):
    """With the Triton that is installed, whose Gluon is experimental and renames things."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=ROOT, env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    up, down = json.loads(done.stdout)
    assert up["wgmma"] and up["launch_dependents"] and down["wgmma"] and down["wait"]
    assert up["shared"] <= 227 * 1024 and down["shared"] <= 227 * 1024


def test_what_the_ops_in_gluon_do_not_take():
    gluon = pytest.importorskip("fused_gluon")
    half = torch.ones(4, 8, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"x is \[M, K\] and weight \[N, K\], not \[4, 8\] and \[2, 9\]"):
        gluon.down(half, torch.ones(2, 9, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"weight \[2, H, D\], not \[4, 8\] and \[3, 8, 8\]"):
        gluon.geglu_up(half, torch.ones(3, 8, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match="both bf16 or both fp16, not torch.float16 and torch.float32"):
        gluon.down(half, torch.ones(2, 8))
    with pytest.raises(ValueError, match="on one GPU, not on cpu and cpu"):
        gluon.down(half, half)


def test_the_benchmark_has_every_shape_and_ours_is_nowhere_less_exact_than_eager():
    mlp = pytest.importorskip("bench.mlp")
    results = json.loads((ROOT / "bench" / "mlp.json").read_text())
    assert [(r["rows"], r["dim"], r["hidden"], r["dtype"]) for r in results] == mlp.SHAPES
    for one in results:
        errors = {variant["variant"]: variant["error"] for variant in one["variants"]}
        assert max(errors["ours, triton"], errors["ours, gluon"]) <= errors["eager"], one["rows"]


def test_every_trick_is_in_the_source():
    """What bench/tricks.py takes out has to be there, and what is left has to be Python."""
    tricks = pytest.importorskip("bench.tricks")
    for what, (file, changes) in (tricks.TRICKS | tricks.DOWNS).items():
        whole, less = (tricks.without(file, some, 0) for some in ([], changes))
        compile(less, what, "exec")
        assert less != whole


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


def test_the_fakes_have_the_shapes_that_torch_compile_needs(ours):
    from torch._subclasses.fake_tensor import FakeTensorMode

    gluon = pytest.importorskip("fused_gluon")
    with FakeTensorMode():
        x, weight = torch.empty(5, 8, dtype=torch.float16), torch.empty(2, 24, 8, dtype=torch.float16)
        for out in (ours.geglu_up(x, weight), gluon.geglu_up(x, weight), gluon.down(x, weight[0])):
            assert out.shape == (5, 24) and out.dtype == torch.float16


def test_the_recorded_trace_has_two_kernels_and_no_activation():
    steps = work.per_step(reading.read(RECORDED))
    assert (steps.kernels, steps.copies) == (2, 0)
    assert [row.family for row in steps.rows if row.family != "memset"] == ["gemm", "gemm"]
    assert any(row.op == "ladder::geglu_up" and row.dims == [[8192, 768], [2, 3072, 768]] for row in steps.rows)


# On a GPU


@pytest.fixture(params=["triton", "gluon"])
def up(request, ours):
    """The op of either kernel."""
    if request.param == "triton":
        return ours.geglu_up
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernels in Gluon are for Hopper")
    return pytest.importorskip("fused_gluon").geglu_up


@pytest.fixture
def poisoned():
    """Uninitialized memory is NaN: an element that is not written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.ones(1, device="cuda").new_empty(8).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def error(out, reference):
    return ((out.double() - reference).norm() / reference.norm()).item()


SHAPES = [
    *((rows, 768, 3072) for rows in (1, 16, 128, 1000, 8192)),
    *((1000, 1000, 3000), (4096, 3584, 14336)),
    *((77, 100, 37), (3, 1, 1), (129, 65, 130), (2, 8, 8)),  # rows that no descriptor takes, tiles that hang over
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("M", "D", "H"), SHAPES)
def test_no_less_exact_than_eager_and_every_element_written(up, M, D, H, dtype, request):
    x = torch.randn(M, D, device="cuda").to(dtype)
    w = (torch.randn(2, H, D, device="cuda") / D**0.5).to(dtype)
    reference = F.gelu(x.double() @ w[0].double().T, approximate="tanh") * (x.double() @ w[1].double().T)
    eager = F.gelu(x @ w[0].T, approximate="tanh") * (x @ w[1].T)
    request.getfixturevalue("poisoned")  # from here on: cuBLAS wants more set up for its own determinism
    out = up(x, w)
    found, eagers = error(out, reference), error(eager, reference)
    limit = eagers * 1.02 if out.numel() > 1000 else 2 * torch.finfo(dtype).eps  # of a few elements, luck decides
    assert out.isfinite().all() and found <= limit, (found, eagers)
    assert torch.equal(out, up(x, w))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_the_down_projection_is_as_exact_as_cublas(M, N, K, dtype, request):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernels in Gluon are for Hopper")
    gluon = pytest.importorskip("fused_gluon")
    h = torch.randn(M, K, device="cuda").to(dtype)
    w = (torch.randn(N, K, device="cuda") / K**0.5).to(dtype)
    reference, cublas = h.double() @ w.double().T, h @ w.T
    request.getfixturevalue("poisoned")
    out = gluon.down(h, w)
    assert out.isfinite().all() and error(out, reference) <= error(cublas, reference) * 1.02 + 1e-6
    assert torch.equal(out, gluon.down(h, w))


@pytest.mark.gpu
def test_views_empty_inputs_and_large_values(up):
    w = torch.randn(2, 64, 96, device="cuda", dtype=torch.float16)
    wide = torch.randn(50, 2 * 96, device="cuda", dtype=torch.float16)
    for x in (wide[:, ::2], wide[:, 96:], wide[::2, :96], wide[:, 1:97], wide[:1, :96].expand(50, 96)):
        reference = F.gelu(x.double() @ w[0].double().T, approximate="tanh") * (x.double() @ w[1].double().T)
        assert error(up(x, w), reference) < 2e-3
    assert up(wide[:0, :96], w).shape == (0, 64)
    large = torch.full((16, 96), 600.0, device="cuda", dtype=torch.float16)  # gate near 60,000: its cube is 2e14
    w = torch.stack([torch.full((64, 96), 1.0), torch.full((64, 96), 1e-5)]).to("cuda", torch.float16)
    reference = large.double() @ w[0].double().T * (large.double() @ w[1].double().T)
    assert torch.allclose(up(large, w).double(), reference, rtol=2e-3)
    assert (up(-large, w) == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton", "gluon"])
def test_torch_compile_holds_the_ops(ours, kernel):
    if kernel == "gluon" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernels in Gluon are for Hopper")
    mlp = ours.FusedGeGLUMLP(ours.SimpleGeGLUMLP(128, 256).to("cuda", torch.bfloat16), kernel)
    x = torch.randn(4, 8, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.allclose(torch.compile(mlp, fullgraph=True)(x), mlp(x), rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_fp32_is_one_line(tmp_path):
    done = run("05_fused_mlp.py", "--dtype", "fp32", "--out", tmp_path)
    assert done.returncode == 1 and "use --dtype bf16 or fp16" in one_line(done.stderr)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton", "gluon"])
def test_the_lesson_on_a_gpu(tmp_path, kernel):
    done = run("05_fused_mlp.py", "--kernel", kernel, "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "2 kernels" in done.stdout
    assert list(tmp_path.rglob(f"*_{kernel}.json"))


@pytest.mark.gpu
def test_the_tuning_is_kept_on_disk(tmp_path):
    """The second process reads what the first one measured."""
    code = "from common import lesson; import torch; m = lesson.load('05_fused_mlp'); import fused_gluon as g; "
    code += "x = torch.ones(64, 128, device='cuda').bfloat16(); w = torch.ones(2, 256, 128, device='cuda').bfloat16(); "
    code += "m.geglu_up(x, w); m.geglu_gemm_tma.bench_time; g.geglu_up(x, w); g.geglu_gemm_gluon.bench_time"
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert "no attribute 'bench_time'" in second.stderr  # which is set by measuring
