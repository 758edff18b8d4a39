"""Pictures: what is in them, that no label covers another, and that the files are what they say."""

import itertools
import struct
import xml.etree.ElementTree as ElementTree

from common import reading, timeline

import pytest
from conftest import H200, ROOT, one_line, run
from matplotlib.collections import LineCollection

MLP = H200 / "03_simple_mlp"
EAGER, COMPILED, TUNED = (
    MLP / f"64x128x768x3072_bf16_warm_{variant}.json.gz" for variant in ("eager", "compile", "compile-max-autotune")
)
LIGER = H200 / "04_liger_mlp" / "64x128x768x3072_bf16_warm_liger-package.json.gz"
EVERY = [*sorted(H200.rglob("*.json.gz")), *sorted((ROOT / "tests" / "traces").rglob("*.json.gz"))]


def figure(*paths, summary=False):
    return timeline.draw([path.stem for path in paths], [reading.read(path) for path in paths], summary)


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize(
    "paths", [(EAGER, COMPILED, LIGER), *((path,) for path in EVERY)], ids=lambda p: p[0].name[:40]
)
def test_no_label_covers_another_or_leaves_its_bar(paths):
    made = figure(*paths)
    made.draw_without_rendering()  # the legend finds its place
    boxes = [text.get_window_extent() for axes in made.axes for text in axes.texts]
    boxes += [axes.title.get_window_extent() for axes in made.axes]
    boxes += [text.get_window_extent() for text in [*made.texts, *made.legends[0].get_texts()]]
    boxes += [made.axes[-1].xaxis.label.get_window_extent()]
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)
    width, height = made.get_size_inches() * made.dpi
    assert width == 1200
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)


def test_a_kernel_on_two_shapes_has_the_limit_of_each():
    """SDPA's math backend copies by one kernel both 0.4 GB and a sixteenth of it."""
    (axes,) = figure(ROOT / "tests" / "traces" / "h200" / "sdpa_math.json.gz").axes
    step = timeline._Step(reading.read(ROOT / "tests" / "traces" / "h200" / "sdpa_math.json.gz"))
    pairs = zip(step.items, step.roofs, strict=True)
    limits = {(item.event.ts - step.start, roof.ideal_us) for item, roof in pairs if "bfloat16_copy" in item.event.name}
    assert len({round(ideal) for _, ideal in limits}) == 2
    assert {round(begins + ideal) for begins, ideal in limits} <= {round(x) for x in axes.lines[0].get_xdata()}


def test_what_has_no_label_is_counted():
    made = figure(EAGER)
    (note,) = [text.get_text() for text in made.texts]
    every = [collection for axes in made.axes for collection in axes.collections]
    bars = sum(len(collection.get_paths()) for collection in every if not isinstance(collection, LineCollection))
    named = len([text for text in texts(made) if text not in ("CPU", "GPU")])
    assert note == f"bars too narrow for a label: {bars - named}" and named > 15


def test_a_step_has_its_ops_its_kernels_in_their_colours_and_the_lines_between():
    made = figure(EAGER)
    assert {"ProfilerStep#4", "mlp_fwd", "aten::linear", "aten::mm", "mm", "gelu", "mul"} <= set(texts(made))
    (axes,) = made.axes
    colours = [collection.get_facecolor() for collection in axes.collections]
    fills = [tuple(round(c * 255) for c in colour[0][:3]) for colour in colours if len(colour)]
    assert {(0, 0x72, 0xB2), (0xE6, 0x9F, 0), (0xF0, 0xE4, 0x42)} <= set(fills)  # GEMMs, elementwise, memsets
    (lines,) = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
    assert len(lines.get_segments()) == 7  # five kernels and two memsets, each from its launch
    assert all(begin[0] <= end[0] for begin, end in lines.get_segments())
    (marks,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert len(marks.get_xdata()) == 5  # not of the memsets, which are too short to have a limit


def test_traces_share_one_time_axis():
    limits = {axes.get_xlim() for axes in figure(EAGER, COMPILED, LIGER).axes}
    assert len(limits) == 1 and next(iter(limits))[1] > 530  # the compiled step is the longest


def test_the_ladder_says_where_kernels_overlap():
    """Rung 5 in Gluon: its second kernel begins before the first ends: their times add up to more than busy."""
    said = texts(figure(H200 / "05_fused_mlp" / "64x128x768x3072_bf16_warm_gluon.json.gz", LIGER, summary=True))
    assert "  162.6 us\n  155.0 us busy, for kernels overlap" in said and "  215.8 us" in said


def test_the_ladder_has_a_bar_a_variant_and_the_limit_as_a_line():
    made = figure(EAGER, COMPILED, TUNED, LIGER, summary=True)
    (axes,) = made.axes
    titles = [label.get_text() for label in axes.get_yticklabels()]
    assert titles[0] == EAGER.stem and titles[2] == f"...{TUNED.stem[-45:]}"
    assert "  232.9 us" in texts(made) and "163.6" in texts(made)
    limits = [line.get_xdata()[0] for line in axes.lines]
    assert len(limits) == 4
    # three GEMMs at 795.6 TFLOP/s, 251.7 MB of gelu and mul at 4,152 GB/s, and the memsets as they are
    assert limits[0] == pytest.approx(3 * 2 * 8192 * 768 * 3072 / 795.6e6 + 251.66e6 / 4152.4e3 + 1.5, rel=0.01)


def test_svg_and_png_are_1200_wide_white_and_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        done = run("-m", "common", "draw", EAGER, COMPILED, "-o", tmp_path / name)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"wrote {tmp_path / name}\n")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    png = (tmp_path / "a.png").read_bytes()
    assert png == (tmp_path / "b.png").read_bytes() and struct.unpack(">I", png[16:20]) == (1200,)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag.endswith("svg") and root.get("width") == "864pt"  # 12 inches
    assert "fill: #ffffff" in (tmp_path / "a.svg").read_text()[:3000]  # its own background, on a dark page too
    assert len(list(tmp_path.iterdir())) == 4


def test_a_picture_of_a_trace_without_gpu_or_steps(tmp_path):
    trace = reading.read(EAGER)
    for category in ("kernel", "gpu_memset", "cuda_runtime", "cuda_driver"):
        trace.groups[category] = []
    assert "GPU" not in texts(timeline.draw(["cpu"], [trace]))
    trace = reading.read(EAGER)
    trace.groups["user_annotation"] = []
    assert "GPU" in texts(timeline.draw(["no steps"], [trace]))


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("-o", "step.jpg"), 2, "neither a .svg nor a .png file"),
        ((), 2, "-o/--output"),
        (("-o", "no/such/folder/step.svg"), 1, "cannot write no/such/folder/step.svg: No such file or directory"),
    ],
)
def test_a_wrong_output_is_one_line(words, status, says):
    done = run("-m", "common", "draw", EAGER, *words)
    assert done.returncode == status and says in done.stderr and "Traceback" not in done.stderr
    if status == 1:
        one_line(done.stderr)


def test_the_gpu_is_not_idle_where_the_step_before_it_still_runs():
    made = figure(H200 / "01_matmul_add" / "4096_bf16_warm_eager_s0-0-20.json.gz")
    assert "another step's" in [text.get_text() for text in made.legends[0].get_texts()]
    assert "GPU busy 194.0 us of a step of 198.3 us" in made.axes[0].get_title(loc="left")


def test_names_are_text_and_long_ones_end_before_the_edge(tmp_path):
    path = tmp_path / f"a$b$c {'x' * 100}.json.gz"
    path.write_bytes(EAGER.read_bytes())
    for flag in ((), ("--summary",)):
        done = run("-m", "common", "draw", path, COMPILED, *flag, "-o", tmp_path / "x.SVG")
        assert (done.returncode, done.stderr) == (0, "")
    trace = reading.read(EAGER)
    trace.groups["cpu_op"][0].name = r"$\frac{$"
    made = timeline.draw(["$" + "y" * 300], [trace])
    made.draw_without_rendering()
    assert made.axes[0]._left_title.get_window_extent().x1 < 1200


def test_several_gpus_have_a_lane_each_and_a_picture_is_no_trace(tmp_path):
    trace = reading.read(EAGER)
    for event in trace.groups["kernel"][::2]:
        event.args.device = 1
    assert {"GPU 0", "GPU 1"} <= set(texts(timeline.draw(["two"], [trace])))
    copy = tmp_path / "trace.json"
    copy.write_text("{}")
    done = run("-m", "common", "draw", EAGER, "-o", EAGER)
    assert done.returncode == 2  # no .svg
    (tmp_path / "trace.svg").write_bytes(EAGER.read_bytes())
    done = run("-m", "common", "draw", tmp_path / "trace.svg", "-o", tmp_path / "trace.svg")
    assert done.returncode == 2 and "is one of the traces" in done.stderr


def test_a_cpu_trace_has_no_bar_of_gpu_work():
    trace = reading.read(EAGER)
    for category in ("kernel", "gpu_memset", "cuda_runtime", "cuda_driver"):
        trace.groups[category] = []
    assert "  no GPU work" in texts(timeline.draw(["cpu", "gpu"], [trace, reading.read(EAGER)], summary=True))
