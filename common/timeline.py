"""One step as a picture: the CPU's ops and launches above the GPU's kernels, several traces on one time axis.

And the ladder: what keeps the GPU busy in each variant, against the limit. By matplotlib, as SVG or PNG.
"""

import os
import statistics
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import lanes, names, roofline, work
from common.events import GPU, RUNTIME, Event, Scalar, Trace
from common.shapes import Roof
from common.tables import us
from common.work import Item

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

# Okabe and Ito's palette, which people who see colours differently can tell apart.
COLORS = {
    names.GEMM: "#0072B2",
    names.ATTENTION: "#CC79A7",
    names.ELEMENTWISE: "#E69F00",
    names.REDUCTION: "#009E73",
    names.COPY: "#56B4E9",
    names.MEMSET: "#F0E442",
    names.COMMUNICATION: "#D55E00",
    names.OTHER: "#999999",
}
WHITE_ON = (names.GEMM, names.COMMUNICATION, names.REDUCTION)
OP, LAUNCH, ANNOTATION, OTHERS = "#E8E8E8", "#C4C4C4", "#F7F7F7", "#DADADA"
DEEPEST = 40  # levels of the CPU, and streams
INCHES, DPI = 12, 100  # 1200 pixels: a README's width
ROW, GPU_ROW, GPU_BAR = 0.2, 0.45, 0.34  # inches
STYLE: Any = {
    "font.size": 8,
    "svg.fonttype": "path",
    "svg.hashsalt": "step",
    "axes.linewidth": 0.6,
    "text.parse_math": False,
}


def draw(titles: list[str], traces: list[Trace], summary: bool = False) -> Figure:
    """A figure of one step of each trace, that of the median length; or with `summary` the ladder."""
    with matplotlib.rc_context(STYLE):
        return _ladder(titles, traces) if summary else _steps(titles, traces)


def save(figure: Figure, path: Path) -> None:
    """To .svg or .png, whole before it gets its name; the same bytes for the same traces."""
    kind = path.suffix.lower().removeprefix(".")
    none = {"Date": None} if kind == "svg" else {"Software": None}  # what would differ from run to run
    with matplotlib.rc_context(STYLE), tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        file = Path(folder) / path.name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of letters that the font lacks
            figure.savefig(file, dpi=DPI, format=kind, metadata=none)
        os.replace(file, path)


class _Step:
    """The events of one step, and where they go. Times are microseconds from its first event."""

    def __init__(self, trace: Trace) -> None:
        self.steps = work.per_step(trace)
        marks = lanes.steps(trace)
        working = [i for i, items in enumerate(self.steps.inside) if items] or [0]
        spans = [self.steps.spans_us[i] for i in working]
        chosen = working[spans.index(statistics.median_low(spans))]
        self.items: list[Item] = sorted(self.steps.inside[chosen], key=lambda item: item.event.ts)
        pairs = zip(self.steps.rows, roofline.roofs(trace, self.steps), strict=True)
        roofs = {id(item): roof for row, roof in pairs for item in row.items}
        self.roofs = [roofs[id(item)] for item in self.items]
        on_cpu = [*trace.groups["user_annotation"], *trace.groups["cpu_op"], *trace.of(RUNTIME)]
        if marks:
            mark = marks[chosen][1]
            on_cpu = [e for e in on_cpu if mark.ts <= e.ts < mark.end]
            on_cpu.sort(key=lambda e: (e.pid, e.tid) != (mark.pid, mark.tid))  # the step's own thread first
        nested = _nested(on_cpu)
        self.cpu = [(event, depth) for event, depth in nested if depth < DEEPEST]
        self.dropped = len(nested) - len(self.cpu)
        every = [event for event, _ in nested] + [item.event for item in self.items]
        self.start = min((event.ts for event in every), default=0.0)
        end = max((event.end for event in every), default=0.0)
        self.length = end - self.start
        mine = {id(item.event) for item in self.items}
        gpu = [] if not self.steps.on_gpu else [e for e in trace.of(GPU) if e.end > self.start and e.ts < end]
        self.others = [e for e in gpu if id(e) not in mine]  # of the steps before and behind
        self.depth = 1 + max((depth for _, depth in self.cpu), default=0)
        lanes_ = sorted({_lane(event) for event in gpu}, key=lambda lane: [str(x).zfill(12) for x in lane])
        self.lanes = lanes_[:DEEPEST]
        self.gpu_y = self.depth * ROW + 0.15
        self.height = self.gpu_y + len(self.lanes) * GPU_ROW
        busy = f"GPU busy {us(work.busy(self.items))} us"
        self.says = f"{busy} of a step of {us(self.steps.spans_us[chosen])} us" if marks else busy


def _lane(event: Event) -> tuple[Scalar, Scalar]:
    """The GPU and the stream."""
    return event.args.device if event.args else None, event.tid


def _by(item: Item) -> str:
    by = item.op or item.launch
    return by.name if by else ""


def _nested(events: list[Event]) -> list[tuple[Event, int]]:
    """Each with its depth: how many of its thread's events are around it. A second thread begins below the first."""
    placed, base = [], 0
    for thread in dict.fromkeys((event.pid, event.tid) for event in events):
        mine = sorted((e for e in events if (e.pid, e.tid) == thread), key=lambda e: (e.ts, -e.dur))
        around: list[Event] = []
        deepest = 0
        for event in mine:
            while around and around[-1].end <= event.ts:
                around.pop()
            placed.append((event, base + len(around)))
            deepest = max(deepest, len(around))
            around.append(event)
        base += deepest + 1
    return placed


def _steps(titles: list[str], traces: list[Trace]) -> Figure:
    drawn = [_Step(trace) for trace in traces]
    above, between, below = 0.35, 0.3, 0.45
    height = above + sum(one.height + between for one in drawn) + below
    figure = Figure(figsize=(INCHES, height), dpi=DPI, facecolor="white")
    renderer = FigureCanvasAgg(figure).get_renderer()  # one to measure texts with: each text would make its own
    top = height - above
    unlabelled = sum(one.dropped for one in drawn)
    longest = max(one.length for one in drawn) or 1.0
    for title, one in zip(titles, drawn, strict=True):
        axes = figure.add_axes((0.055, (top - one.height) / height, 0.93, one.height / height))
        axes.set(xlim=(0, longest * 1.002), ylim=(one.height, 0), yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=2, labelbottom=one is drawn[-1])
        axes.xaxis.set_major_formatter("{x:,.0f}")
        text = f"{_shortened(title, 100)}: {one.says}" if one.steps.on_gpu else _shortened(title, 150)
        axes.set_title(text, loc="left", fontsize=9, pad=4)
        unlabelled += _lanes(axes, one, renderer)
        top -= one.height + between
    axes.set_xlabel("microseconds since the step began" if any(one.steps.numbers for one in drawn) else "microseconds")
    _legend(figure, drawn, height, unlabelled)
    return figure


def _shortened(title: str, most: int) -> str:
    return title if len(title) <= most else f"...{title[3 - most :]}"


def _lanes(axes: Axes, one: _Step, renderer: RendererAgg) -> int:
    """Draws the bars of a step. Returns how many are too narrow for a label."""
    bars = defaultdict(list)  # (y, height, colour) -> (x, width) of each
    labelled: list[tuple[float, float, float, list[str], str]] = []  # x, width, y of the middle, labels, colour
    bottom: dict[int, float] = {}  # id(launch) -> y
    launches, marks = [], []
    for event, depth in one.cpu:
        x, y = event.ts - one.start, depth * ROW
        fill = ANNOTATION if event.cat == "user_annotation" else LAUNCH if event.cat in RUNTIME else OP
        bars[y, ROW * 0.9, fill].append((x, event.dur))
        labelled.append((x, event.dur, y + ROW * 0.45, [event.name, event.name.removeprefix("aten::")], "black"))
        bottom[id(event)] = y + ROW * 0.9
    lane_y = {lane: one.gpu_y + i * GPU_ROW for i, lane in enumerate(one.lanes)}
    for event in one.others:
        if (lane := lane_y.get(_lane(event))) is not None:
            bars[lane, GPU_BAR, OTHERS].append((event.ts - one.start, event.dur))
    for item, roof in zip(one.items, one.roofs, strict=True) if one.steps.on_gpu else ():
        x, dur, lane = item.event.ts - one.start, item.event.dur, lane_y.get(_lane(item.event))
        if lane is None:
            continue
        y = lane
        family, _ = names.classify(item.event.name)
        bars[y, GPU_BAR, COLORS[family]].append((x, dur))
        if ideal := _ideal(roof):
            marks.append((x + ideal, y + GPU_BAR + 0.035))
        if item.launch is not None and id(item.launch) in bottom:
            begins = item.launch.ts - one.start + item.launch.dur / 2
            launches.append([(min(begins, x), bottom[id(item.launch)]), (x, y)])
        short = names.short(item.event.name)
        made = "_".join(short.split("_")[:2]) if short.startswith("triton_") else ""
        labels = [short, _two_lines(short), _by(item).removeprefix("aten::"), made, family]
        labelled.append((x, dur, y + GPU_BAR / 2, labels, "white" if family in WHITE_ON else "black"))
    pixel = axes.get_xlim()[1] / (INCHES * DPI)
    for (y, height, fill), ranges in bars.items():
        wide, narrow = ([r for r in ranges if (r[1] > 4 * pixel) == is_wide] for is_wide in (True, False))
        thin = fill if fill in (*COLORS.values(), OTHERS) else "#999999"  # a dark outline would hide its colour
        for some, inside, edge in ((wide, fill, "#444444"), (narrow, thin, thin)):
            axes.broken_barh(some, (y, height), facecolor=inside, edgecolor=edge, linewidth=0.4)
    axes.add_collection(LineCollection(launches, colors="#555555", linewidths=0.5, zorder=0.5), autolim=False)
    axes.plot([x for x, _ in marks], [y for _, y in marks], "^", color="black", markersize=4, markeredgewidth=0)
    sides = [("CPU", one.depth * ROW / 2)] if one.cpu else []
    gpus = list(dict.fromkeys(gpu for gpu, _ in one.lanes))
    for gpu in gpus:
        mine = [y for (g, _), y in lane_y.items() if g == gpu]
        sides.append((f"GPU {gpu}" if len(gpus) > 1 else "GPU", (mine[0] + mine[-1] + GPU_BAR) / 2))
    for name, y in sides:
        axes.text(-0.012, y, name, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=9)
    return sum(not _label(axes, renderer, *bar) for bar in labelled)


def _ideal(roof: Roof) -> float | None:
    """Where it is worth a mark: not of a kernel too short to have a limit."""
    return roof.ideal_us if roof.bound != "latency" else None


def _two_lines(name: str) -> str:
    """Broken behind the separator nearest to the middle."""
    breaks = [i + 1 for i, letter in enumerate(name[:-1]) if letter in "_,< "]
    at = min(breaks, key=lambda i: abs(i - len(name) / 2), default=0)
    return f"{name[:at]}\n{name[at:]}" if at else ""


def _label(
    axes: Axes, renderer: RendererAgg, x: float, width: float, y: float, labels: list[str], color: str, **how: Any
) -> bool:
    """The first of `labels` that fits into the bar, where one does."""
    left, right = (axes.transData.transform((at, 0))[0] for at in (x, x + width))
    for label in labels:
        if not label or right - left - 4 < 2 * max(map(len, label.split("\n"))):  # few letters are narrower
            continue
        size = 7 if "\n" in label else 8
        text = axes.text(x + width / 2, y, label, ha="center", va="center", color=color, fontsize=size, **how)
        if text.get_window_extent(renderer).width <= right - left - 4:
            return True
        text.remove()
    return False


def _legend(figure: Figure, drawn: list[_Step], height: float, unlabelled: int) -> None:
    on_gpu = [one for one in drawn if one.steps.on_gpu]
    seen = {names.classify(item.event.name)[0] for one in on_gpu for item in one.items}
    handles: list[Patch | Line2D] = [Patch(color=COLORS[family], label=family) for family in COLORS if family in seen]
    if any(one.others for one in drawn):
        handles.append(Patch(facecolor=OTHERS, edgecolor="#444444", label="another step's"))
    if any(one.cpu for one in drawn):
        handles.append(Patch(facecolor=OP, edgecolor="#777777", label="op"))
        handles.append(Patch(facecolor=LAUNCH, label="call of the driver"))
    if any(_ideal(roof) for one in on_gpu for roof in one.roofs):
        mark: Any = {"marker": "^", "markersize": 4, "color": "black", "linestyle": "none"}
        handles.append(Line2D([], [], **mark, label="where it would end at the GPU's limit"))
    figure.legend(
        handles=handles, loc="lower left", ncols=len(handles) or 1, frameon=False, bbox_to_anchor=(0.045, 0),
        columnspacing=1.4,
    )  # fmt: skip
    if unlabelled:
        note = f"bars too narrow for a label: {unlabelled:,}"
        figure.text(0.985, 0.42 / height, note, ha="right", va="center", color="#555555")


def _ladder(titles: list[str], traces: list[Trace]) -> Figure:
    height = 1.05 + 0.5 * len(traces)
    figure = Figure(figsize=(INCHES, height), dpi=DPI, facecolor="white")
    renderer = FigureCanvasAgg(figure).get_renderer()
    titles = [_shortened(title, 48) for title in titles]
    left = 0.03 + 0.0065 * max(len(title) for title in titles)
    axes = figure.add_axes((left, 0.75 / height, 0.9 - left, (height - 0.88) / height))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    every = [work.per_step(trace) for trace in traces]
    totals = [steps.total_us(steps.rows) * steps.on_gpu for steps in every]
    limits = [
        roofline.limit_us(s, roofline.roofs(t, s)) if s.on_gpu else None for t, s in zip(traces, every, strict=True)
    ]
    axes.set_xlim(0, 1.02 * max([*totals, *(limit or 0.0 for limit in limits)]) or 1.0)
    seen: set[str] = set()
    for i, (steps, total, limit) in enumerate(zip(every, totals, limits, strict=True)):
        x = 0.0
        for family in COLORS if steps.on_gpu else ():
            took = steps.total_us(row for row in steps.rows if row.family == family)
            if not took:
                continue
            seen.add(family)
            axes.barh(i, took, left=x, height=0.62, color=COLORS[family], edgecolor="black", linewidth=0.4)
            box = {"facecolor": COLORS[family], "edgecolor": "none", "pad": 1.5}  # in front of the limit's line
            _label(axes, renderer, x, took, i, [us(took)], "white" if family in WHITE_ON else "black", bbox=box)
            x += took
        if limit is not None:
            axes.plot([limit, limit], [i - 0.42, i + 0.42], color="black", linewidth=2)
        says = f"  {us(total)} us" if steps.on_gpu else "  no GPU work"
        busy = sum(map(work.busy, steps.inside)) / (len(steps.inside) or 1)
        if steps.on_gpu and busy < 0.99 * total:
            says += f"\n  {us(busy)} us busy, for kernels overlap"
        axes.text(max(total, limit or 0.0), i, says, va="center", fontweight="bold")
    axes.set(yticks=range(len(titles)), yticklabels=titles, ylim=(len(titles) - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("microseconds of GPU work in a step")
    handles: list[Patch | Line2D] = [Patch(color=COLORS[family], label=family) for family in COLORS if family in seen]
    if any(limit is not None for limit in limits):
        handles.append(Line2D([], [], color="black", linewidth=2, label="the same kernels at the GPU's limit"))
    figure.legend(handles=handles, loc="lower left", ncols=len(handles) or 1, frameon=False, bbox_to_anchor=(0.02, 0))
    return figure
