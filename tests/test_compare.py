"""compare: Part 2's conclusion, and the H200's addmm, from the files alone."""

import json
from pathlib import Path

from common import compare, names, reading

import pytest
from conftest import H200, ROOT, one_line, run

FOREIGN = ROOT.parent / "shared" / "foreign-traces"
MLP = H200 / "03_simple_mlp"
EAGER, COMPILED = (MLP / f"64x128x768x3072_bf16_warm_{variant}.json.gz" for variant in ("eager", "compile"))
LIGER = H200 / "04_liger_mlp" / "64x128x768x3072_bf16_warm_liger-package.json.gz"


def verdicts(a: Path, b: Path) -> list[tuple[str, list[str], list[str]]]:
    sides = [compare.side(reading.read(path)) for path in (a, b)]
    found = compare.pairs(*sides)
    for index, side in enumerate(sides):  # every kernel of a step is in exactly one pair
        told = [call.row.name for pair in found for call in (pair.a, pair.b)[index]]
        assert sorted(told) == sorted(call.row.name for call in side.calls)
    return [
        (pair.verdict, *([names.short(call.row.name) for call in calls] for calls in (pair.a, pair.b)))
        for pair in found
    ]


@pytest.mark.parametrize("other", [COMPILED, LIGER], ids=["compile", "liger"])
def test_part_2s_conclusion_from_the_files_alone(other):
    found = verdicts(EAGER, other)
    assert [verdict for verdict, _, _ in found].count("same") == 5  # three GEMMs and two memsets
    ((_, was, became),) = [row for row in found if row[0] == "fused"]
    assert [name.split("<")[1].split(", ")[1].rstrip(">").split("<")[0] for name in was] == [
        "GeluCUDAKernelImpl",
        "MulFunctor",
    ]
    assert became[0] in ("triton_poi_fused__unsafe_view_gelu_mul_0", "_geglu_tanh_forward_kernel")
    a, b = (compare.side(reading.read(path)) for path in (EAGER, other))
    assert a.bytes - b.bytes == 2 * 50_331_648  # one round trip of the hidden tensor
    assert not a.unknown and not b.unknown


def test_inductors_kernel_and_ligers_are_the_same_work():
    ((_, was, became),) = [row for row in verdicts(COMPILED, LIGER) if row[0] != "same"]
    assert (was, became) == (["triton_poi_fused__unsafe_view_gelu_mul_0"], ["_geglu_tanh_forward_kernel"])


@pytest.mark.parametrize("size", ["64", "4096"])
def test_the_h200s_addmm_is_another_gemm_and_a_copy(size):
    paths = [H200 / "01_matmul_add" / f"{size}_bf16_warm_{variant}.json.gz" for variant in ("eager", "compile")]
    found = {verdict: (was, became) for verdict, was, became in verdicts(*paths) if verdict != "same"}
    assert set(found) == {"renamed", "gone", "new"}
    assert "_bz_" in found["renamed"][0][0] and "_badd_" in found["renamed"][1][0]
    assert found["new"][1] == ["Memcpy DtoD"] and "CUDAFunctor_add" in found["gone"][0][0]


def test_the_printed_comparison():
    done = run("-m", "common", "compare", EAGER, COMPILED, LIGER)
    assert (done.returncode, done.stderr) == (0, "") and "Careful" not in done.stdout
    assert done.stdout.count("fused  ") == 2 and "B saves 100.7 MB of memory traffic a step" in done.stdout
    assert "Gone from the CPU: aten::" in done.stdout and "no GPU work" in done.stdout
    assert "unprofiled forward" in done.stdout and "GPU operations " in done.stdout
    addmm = run(
        "-m", "common", "compare", *sorted(H200.glob("01_matmul_add/64_bf16_warm_[ce]*[er].json.gz"), reverse=True)
    )
    assert "bz -> badd" in addmm.stdout


def test_the_json_comparison():
    done = json.loads(run("-m", "common", "compare", EAGER, COMPILED, "--json").stdout)
    assert {row["verdict"] for row in done["rows"]} == {"same", "fused"}
    assert all({"verdict", "a", "b", "a_us", "b_us"} <= set(row) for row in done["rows"])
    assert [side["kernels"] for side in done["per_step"]] == [5, 4]


def test_what_makes_a_comparison_unfair_is_said_first():
    done = run("-m", "common", "compare", H200 / "01_matmul_add" / "4096_bf16_warm_eager.json.gz", EAGER)
    assert "Careful: different sizes" in done.stdout.splitlines()[3]


def test_one_trace_is_not_enough():
    done = run("-m", "common", "compare", EAGER)
    assert done.returncode == 2 and "give it two traces" in done.stderr
    missing = run("-m", "common", "compare", EAGER, "/no/such.json")
    assert missing.returncode == 1 and "/no/such.json" in one_line(missing.stderr)


@pytest.mark.skipif(not FOREIGN.is_dir(), reason="other people's traces are not here")
@pytest.mark.parametrize("path", sorted(FOREIGN.glob("*.gz")), ids=lambda path: path.name)
def test_any_trace_compares_with_itself_as_the_same_throughout(path):
    found = verdicts(path, path)
    assert {verdict for verdict, _, _ in found} <= {"same"}
    assert run("-m", "common", "compare", path, path).returncode == 0


@pytest.mark.skipif(not FOREIGN.is_dir(), reason="other people's traces are not here")
def test_any_two_traces_compare():
    paths = sorted(FOREIGN.glob("*.gz"))
    for path in paths:
        verdicts(EAGER, path)
    done = run("-m", "common", "compare", *paths)
    assert done.returncode == 0 and "different devices" in done.stdout
