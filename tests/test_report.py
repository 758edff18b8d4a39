"""What `uv run -m common show` prints: in a pipe, and in terminals of 80 and of 160 columns."""

import ast
import gzip
import io
import json
import os
import re
import subprocess
import sys

from common import decode, reading, report, verbs

import pytest
from conftest import H200, ROOT, one_line, read_json, run
from rich.console import Console

COMPILED = H200 / "03_simple_mlp" / "64x128x768x3072_bf16_warm_compile.json.gz"
EAGER = COMPILED.with_name("64x128x768x3072_bf16_warm_eager.json.gz")
GOOD = gzip.decompress(EAGER.read_bytes()).decode()
READERS = (
    "compare",
    "decode",
    "parts",
    "vocabulary",
    "verbs",
    "findings",
    "checks_cpu",
    "checks_gpu",
    "checks_waste",
    "checks_profiler",
    "guess",
    "roofline",
    "tables",
    "events",
    "lanes",
    "reading",
    "records",
    "repair",
    "shapes",
    "names",
    "work",
    "report",
    "__main__",
)


def test_a_pipe_gets_a_line_a_row_without_colours_or_boxes():
    done = run("-m", "common", "show", COMPILED)
    assert (done.returncode, done.stderr) == (0, "")
    heading, *rows, summary, limits, bound = done.stdout.splitlines()
    headings = "kernel family origin launched by input shapes a step median us min..max us share"
    assert heading.split() == f"{headings} FLOP bytes TFLOP/s GB/s bound ideal us of ideal".split()
    assert len(rows) == 4 and done.stdout.isascii()
    fused = re.match(r"(\S+) +(\S+) +(\S+) +(\S+) +(.*\]) +(\d+) +([\d.]+) +([\d.]+)\.\.([\d.]+) +(\d+)%  +", rows[2])
    name, family, origin, op, shapes, calls, median, low, high, share = fused.groups()
    assert (name, family, origin, op) == ("triton_poi_fused__unsafe_view_gelu_mul_0", "elementwise", "Inductor", name)
    assert (shapes, calls) == ("[64,128,3072] [8192,3072]", "1")
    assert float(low) <= float(median) <= float(high) and 0 < int(share) < 100
    flop, size, *_, kind, ideal, part = rows[2][fused.end() :].split()
    assert (flop, size, kind) == ("251,658,240", "150,994,944", "memory") and part.endswith("%")
    assert float(ideal) / float(median) == pytest.approx(int(part[:-1]) / 100, abs=0.01)
    assert re.match(
        r"A step: 4 kernels, 0 copies, 2 memsets; GPU busy .* us of .* us \(\d+%\); steps of .*, .*, .* us\.$", summary
    )
    assert re.match(r"Limits: \d+ TFLOP/s, [\d,]+ GB/s, measured in the lesson's run\.$", limits)
    assert bound.startswith("The step is compute-bound: ")


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("full_names", [False, True])
def test_a_terminal_loses_no_letter_of_a_name_at_any_width(width, full_names):
    out = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, highlight=False)
    report.show(out, reading.read(EAGER), full_names)
    text = out.file.getvalue()
    assert max(len(line.rstrip("\n")) for line in text.splitlines()) <= width
    assert "…" not in text
    column = "".join(line[: line.find("  ")] if "  " in line else line for line in text.splitlines()).replace(" ", "")
    assert "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT" in column
    assert ("at::native::vectorized_elementwise_kernel<8,at::native::GeluCUDAKernelImpl(" in column) == full_names
    assert "[8192,768]" in text.replace("\n", "") and "GPU busy" in text


def test_json_has_the_promised_keys():
    shown = json.loads(run("-m", "common", "show", COMPILED, "--json").stdout)
    assert set(shown) == {"file", "device", "steps", "peaks", "per_step", "kernels", "set_aside"}
    assert (shown["device"], shown["steps"], shown["set_aside"]) == ("NVIDIA H200", [2, 3, 4], [])
    assert set(shown["per_step"]) == {"kernels", "copies", "memsets", "gpu_busy_us", "span_us"}
    keys = (
        "name short family origin op dims per_step calls median_us min_us max_us total_us flops bytes tflops gbps bound"
    )
    assert all({*keys.split(), "ideal_us", "of_ideal"} <= set(kernel) for kernel in shown["kernels"])
    assert sum(k["flops"] * k["per_step"] for k in shown["kernels"] if k["family"] == "gemm") == 3 * 38_654_705_664
    assert [k["flops"] for k in shown["kernels"] if k["family"] == "memset"] == [None]


def test_a_pipe_can_be_read():
    done = run("-c", f"import os; os.system('zcat {EAGER} | ' + os.sys.executable + ' -m common show /dev/stdin')")
    assert "nvjet_sm90" in done.stdout and done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a full disk ready")
def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "common", "show", EAGER], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1 and "cannot write the output: No space left" in one_line(done.stderr)


def test_an_ascii_terminal_is_no_reason_to_fail(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(GOOD.replace("aten::gelu", "aten::gélu"), encoding="utf-8")
    done = run("-m", "common", "show", path, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "g\\xe9lu" in done.stdout


def test_a_name_cannot_command_the_terminal(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(GOOD.replace("nvjet_sm90_tst_192x128", "\\u001b[31m\\nnv:smile:[red]"))
    done = run("-m", "common", "show", path)
    assert "\x1b" not in done.stdout and " [31m nv:smile:[red]_64x5_1x2_h_bz_coopB_TNT" in done.stdout


def test_several_gpus_get_a_section_each(tmp_path):
    trace = read_json(EAGER)
    gpu = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memset")]
    for event in gpu[: len(gpu) // 2]:
        event["args"]["device"] = 1
    trace["deviceProperties"].append(dict(trace["deviceProperties"][0], id=1))
    path = tmp_path / "two.json"
    path.write_text(json.dumps(trace))
    done = run("-m", "common", "show", path)
    assert "\nGPU 0, NVIDIA H200\n" in done.stdout and "\nGPU 1, NVIDIA H200\n" in done.stdout
    assert done.stdout.count("A step: ") == 2 and "Set aside" not in done.stdout
    both = json.loads(run("-m", "common", "show", path, "--json").stdout)
    assert sum(kernel["calls"] for shown in both for kernel in shown["kernels"]) == len(gpu)


def test_full_names_are_full():
    done = run("-m", "common", "show", COMPILED.parent / "64x128x768x3072_bf16_warm_eager.json.gz", "--full-names")
    assert "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl" in done.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "an empty file"),
        (b"{}", "no list of events"),
        (b"\x7fELF\x00\xff", "no list of events"),
        (b'{"traceEvents": [{"ph"', "no event in it can be read"),
        (b"\x1f\x8bxx", "cut off or damaged"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, content, says):
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_bytes(content)
    done = run("-m", "common", "show", path)
    assert done.returncode == 1 and says in one_line(done.stderr) and not done.stdout


def test_a_folder_is_refused_in_one_line(tmp_path):
    done = run("-m", "common", "show", tmp_path)
    assert done.returncode == 1 and "directory" in one_line(done.stderr).lower()


def imported_at_the_top(name: str) -> set[str]:
    """Modules that `common/NAME.py` imports when it is imported."""
    found = set()
    for node in ast.parse((ROOT / "common" / f"{name}.py").read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_file_is_the_only_bridge_between_session_and_readers():
    heavy = {"torch", "triton", "kernels", "numpy"}
    for name in READERS:
        assert not heavy & {module.split(".")[0] for module in imported_at_the_top(name)}, name
        ours = {module.split(".")[1] for module in imported_at_the_top(name) if module.startswith("common.")}
        assert not ours & {"session", "lesson", "device", "artifacts"}, name
    done = run("-c", f"import sys, common.report, common.records, common.__main__; print({heavy} & set(sys.modules))")
    assert done.stdout == "set()\n"
    for name in ("session", "artifacts", "device", "cli"):
        ours = {module.split(".")[1] for module in imported_at_the_top(name) if module.startswith("common.")}
        assert not ours & {*READERS}, name


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX pipes")
def test_a_closed_pipe_is_no_traceback():
    done = run("-c", f"import os; os.system('{{}} -m common show {COMPILED} | head -n 1'.format(os.sys.executable))")
    assert done.stderr == "" and done.stdout.startswith("kernel")


def test_the_readmes_output_is_what_its_commands_print():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    out = Console(file=io.StringIO(), force_terminal=True, width=116, color_system=None, highlight=False)
    report.show(out, reading.read(COMPILED))
    verbs.compared(out, [p.relative_to(ROOT) for p in (EAGER, COMPILED)], [reading.read(p) for p in (EAGER, COMPILED)])
    verbs.explained(out, reading.read(H200 / "01_matmul_add" / "4096_bf16_warm_compile.json.gz"), full_names=False)
    verbs.decoded(out, [decode.decode("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn")], full_names=False)
    shown = run("-m", "common", "show", EAGER, "--guess", "5").stdout.splitlines()[-1]
    assert f"uv run -m common show {COMPILED.relative_to(ROOT)}" in text
    for line in [*out.file.getvalue().splitlines(), shown]:
        assert f"\n    {line}".rstrip() in text, line
