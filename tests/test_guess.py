"""guess: what a reader may write, and how the trace answers."""

from common import guess, reading, work

import pytest
from conftest import H200, run

MLP = H200 / "03_simple_mlp" / "64x128x768x3072_bf16_warm_eager.json.gz"


def verdict(text: str, path=MLP) -> list[str]:
    return guess.verdict(guess.parse(text), work.per_step(reading.read(path)))


def test_a_number_counts_all_that_a_step_puts_on_the_gpu():
    assert verdict("5") == ["You guessed 5, the trace has 7: 5 kernels, and 2 x Memset of 4 bytes by aten::mm."]
    (right,) = verdict("7")
    assert right.startswith("You guessed 7, and so it is: ")


def test_families_are_told_apart_and_what_was_not_guessed_is_named():
    gemm, elementwise, memset = verdict("gemm=3,elementwise=1")
    assert gemm.startswith("gemm: you guessed 3, and so it is: 2 x nvjet_")
    assert elementwise.startswith("elementwise: you guessed 1, the trace has 2: vectorized_elementwise_kernel<8, Gelu")
    assert memset == "memset: not in your guess, and the trace has 2 x Memset of 4 bytes by aten::mm."


def test_a_family_that_is_not_there():
    assert "reduction: none, as you guessed." in verdict("reduction=0")
    assert "copy: you guessed 1, the trace has 0." in verdict("copy=1")


@pytest.mark.parametrize("text", ["", "many", "-1", "gemm", "gemm=x", "gem=3", "gemm=1,gemm=2", "gemm=1,", "9" * 40])
def test_what_is_no_guess_is_wrong_usage(text):
    with pytest.raises(ValueError, match="is neither a number nor like gemm=1,copy=2"):
        guess.parse(text)
    done = run("-m", "common", "show", MLP, f"--guess={text}")
    assert done.returncode == 2 and "neither a number nor like" in done.stderr.splitlines()[-1]


def test_a_lesson_asks_or_checks(call, tmp_path):
    _, asked, _ = call("01_matmul_add", "--size", "8", "--out", tmp_path)
    assert "Your guess, before you look" in asked and "\n- How many kernels does one step launch" in asked
    _, checked, _ = call("01_matmul_add", "--size", "8", "--out", tmp_path, "--guess", "3")
    assert "Your guess, before" not in checked
    assert checked.count("You guessed 3, the trace has 2: ") == 1  # of the recorded GPU, once
