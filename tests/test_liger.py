"""Liger's arithmetic on a CPU: its Triton kernel in Triton's interpreter, in fp32, against PyTorch."""

import sys

import pytest
from conftest import run

# The interpreter has no libdevice: its tanh is a stub, so the same function takes its place. bf16 is wrong there.
SCRIPT = """
from types import SimpleNamespace
import torch, triton.language as tl
import liger_kernel.ops.geglu as geglu
from common import lesson
geglu.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1
layer, variant, origin = lesson.load("04_liger_mlp").from_package("cuda")
for batch, seq, dim, hidden in ((1, 4, 16, 32), (2, 3, 10, 37), (1, 1, 1, 1)):
    mlp = lesson.load("04_liger_mlp").SimpleGeGLUMLP(dim, hidden)
    liger = layer(SimpleNamespace(hidden_size=dim, intermediate_size=hidden))
    liger.load_state_dict(mlp.state_dict())
    x = torch.randn(batch, seq, dim)
    with torch.no_grad():
        out, ref = liger(x), mlp(x)
    error = ((out - ref).norm() / ref.norm()).item()
    assert error < 1e-6, (dim, hidden, error)
print(variant, origin)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_the_layer_computes_what_eager_does():
    done = run("-c", SCRIPT, env={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("liger-package LigerGEGLUMLP from the package liger-kernel 0.8")
