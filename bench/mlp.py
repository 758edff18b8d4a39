"""The GeGLU MLP, everyone side by side in one run: eager, torch.compile, Liger, ours, and the three bare GEMMs.

    uv run -m bench.mlp                            # every shape, a table each; needs an NVIDIA GPU
    uv run -m bench.mlp --shape 8192,768,3072      # one shape: rows, dim, hidden
    uv run -m bench.mlp --results mlp.json         # writes each shape when it is done, and skips those in the file

GPU time is by CUDA events around a call that was queued behind a pause, so that no launch is waited for, with the L2
cache flushed; rounds are interleaved in random order, and the figure is a median, with the middle 80 % beside it. The
same by replay of a CUDA graph, where a variant can be captured. Host time is what a call takes on the CPU.
"""

import argparse
import copy
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from common import lesson

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

ROUNDS = 60
SHAPES = [
    (8192, 768, 3072, "bf16"),  # the articles'
    (8192, 768, 3072, "fp16"),
    *((rows, 768, 3072, "bf16") for rows in (1, 16, 128, 1024, 32768)),
    (8192, 2304, 9216, "bf16"),
    (8192, 3584, 14336, "bf16"),
    (8192, 4096, 11008, "bf16"),
    (1000, 1000, 3000, "bf16"),
]
PEERS = ("eager", "compile", "compile reduce-overhead", "compile max-autotune", "liger")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def variants(rung, mlp, x: torch.Tensor) -> dict[str, Callable]:
    """Everyone's forward on the same weights and input; `floor` is the three GEMMs with nothing between."""
    from liger_kernel.transformers.geglu import LigerGEGLUMLP

    hidden, dim = mlp.gate_proj.weight.shape
    liger = LigerGEGLUMLP(SimpleNamespace(hidden_size=dim, intermediate_size=hidden)).to(x.device, x.dtype)
    liger.load_state_dict(mlp.state_dict())
    ours = {"ours, triton": rung.FusedGeGLUMLP(mlp)}
    if torch.cuda.get_device_capability()[0] == 9:
        ours["ours, gluon"] = rung.FusedGeGLUMLP(mlp, "gluon")
    between = torch.randn(x.shape[0], hidden, device=x.device).to(x.dtype)
    gate, up, down = (layer.weight for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    compiled = {
        "compile": torch.compile(copy.deepcopy(mlp)),
        "compile reduce-overhead": torch.compile(copy.deepcopy(mlp), mode="reduce-overhead"),
        "compile max-autotune": torch.compile(copy.deepcopy(mlp), mode="max-autotune"),
    }
    return {
        "eager": lambda: mlp(x),
        **{name: (lambda fn=fn: fn(x)) for name, fn in (compiled | {"liger": liger} | ours).items()},
        "floor": lambda: (F.linear(x, gate), F.linear(x, up), F.linear(between, down)),
    }


def gpu_times(calls: dict[str, Callable]) -> dict[str, list[float]]:
    """Microseconds of each round of each call, sorted."""
    flush = torch.empty(2**28, device="cuda", dtype=torch.uint8)  # five times the L2 cache
    marks: dict[str, list] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name in random.sample(list(calls), len(calls)):
            flush.zero_()
            torch.cuda._sleep(1_000_000)  # about half a millisecond, in which the CPU gets ahead
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            calls[name]()
            end.record()
            marks[name].append((begin, end))
        torch.cuda.synchronize()
    return {name: sorted(a.elapsed_time(b) * 1e3 for a, b in pairs) for name, pairs in marks.items()}


def host_us(call: Callable) -> float:
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def captured(calls: dict[str, Callable]) -> dict[str, Callable]:
    """The replays of those that can be captured; what is a CUDA graph already cannot."""
    replays = {}
    for name, call in calls.items():
        if name.startswith("compile "):
            continue
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        replays[name] = graph.replay
    return replays


def measure(rung, rows: int, dim: int, hidden: int, dtype: str) -> dict:
    torch.manual_seed(0)
    torch._dynamo.reset()
    mlp = rung.SimpleGeGLUMLP(dim, hidden).to("cuda", DTYPES[dtype])
    x = torch.randn(rows, dim, device="cuda").to(DTYPES[dtype])
    calls = variants(rung, mlp, x)
    first = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        first[name] = time.perf_counter() - start
        for _ in range(4):
            call()
    reference = copy.deepcopy(mlp).double()(x.double())
    errors = {name: _error(call(), reference) for name, call in calls.items() if name != "floor"}
    times, replayed = gpu_times(calls), gpu_times(captured(calls))
    state = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    clock, power = subprocess.run(state, capture_output=True, text=True).stdout.strip().split(", ")
    tuned = [rung.geglu_gemm_tma]
    if "ours, gluon" in calls:
        import fused_gluon

        tuned += [fused_gluon.geglu_gemm_gluon, fused_gluon.down_gemm_gluon]
    config = {kernel.base_fn.__name__: str(getattr(kernel, "best_config", None)) for kernel in tuned}
    middle = {name: statistics.median(values) for name, values in times.items()}
    peer = min(middle[name] for name in PEERS)
    found = [
        {"variant": name, "gpu_us": middle[name], "p10_us": values[ROUNDS // 10], "p90_us": values[-ROUNDS // 10]}
        | {"replay_us": statistics.median(replayed[name]) if name in replayed else None}
        | {"host_us": host_us(calls[name]), "first_s": first[name], "error": errors.get(name)}
        | {"to_eager": middle[name] / middle["eager"], "to_peer": middle[name] / peer}
        | {"to_floor": middle[name] / middle["floor"], "tflops": 6 * rows * dim * hidden / middle[name] / 1e6}
        for name, values in times.items()
    ]
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "clock": clock, "power": power}
    return {"rows": rows, "dim": dim, "hidden": hidden, "dtype": dtype, "config": config} | about | {"variants": found}


def _error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference).norm() / reference.norm()).item()


def show(out: Console, result: dict) -> None:
    shape = f"{result['rows']} rows, {result['dim']} x {result['hidden']}, {result['dtype']}"
    out.print(f"\n{shape}: {result['gpu']}, torch {result['torch']}, {result['clock']}, {result['power']}")
    table = Table(box=None, pad_edge=False)
    headings = (
        "GPU us",
        "p10..p90",
        "by replay",
        "host us",
        "to eager",
        "to the best peer",
        "to the floor",
        "TFLOP/s",
        "error",
    )
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in result["variants"]:
        replay, error = one["replay_us"], one["error"]
        cells = [f"{one['gpu_us']:.1f}", f"{one['p10_us']:.1f}..{one['p90_us']:.1f}", f"{replay:.1f}" if replay else ""]
        ratios = [f"{one[key]:.3f}" for key in ("to_eager", "to_peer", "to_floor")]
        cells += [f"{one['host_us']:.0f}", *ratios, f"{one['tflops']:.0f}", f"{error:.2e}" if error else ""]
        table.add_row(one["variant"], *cells)
    out.print(table)
    for kernel, config in result["config"].items():
        out.print(f"{kernel}: {config}")
    first = [f"{one['first_s']:.1f} s ({one['variant']})" for one in result["variants"] if "ours" in one["variant"]]
    out.print(f"the first call, with compiling and tuning: {', '.join(first)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="uv run -m bench.mlp", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shape", metavar="ROWS,DIM,HIDDEN", help="one shape, in bf16")
    parser.add_argument("--results", type=Path, metavar="FILE", help="a JSON file to write to and to go on from")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "bench.mlp: this needs an NVIDIA GPU\n")
    shapes = [(*map(int, args.shape.split(",")), "bf16")] if args.shape else SHAPES
    done = json.loads(args.results.read_text()) if args.results and args.results.exists() else []
    out = Console(highlight=False, width=160)
    rung = lesson.load("05_fused_mlp")
    with torch.no_grad():
        for shape in shapes:
            known = next((r for r in done if (r["rows"], r["dim"], r["hidden"], r["dtype"]) == shape), None)
            result = known or measure(rung, *shape)
            show(out, result)
            if args.results and not known:
                done.append(result)
                with tempfile.NamedTemporaryFile("w", dir=args.results.parent, delete=False) as file:
                    json.dump(done, file, indent=1)
                os.replace(file.name, args.results)


if __name__ == "__main__":
    main()
