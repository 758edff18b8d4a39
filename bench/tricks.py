"""What each trick of our kernels buys: each is left out of a copy of the source, and all run side by side.

    uv run -m bench.tricks                 # needs a Hopper GPU

At 8192 rows, 768 x 3072, bf16, with the configuration that is tuned for it. Times are medians of rounds interleaved in
random order, with the L2 cache flushed; what counts is the ratio to the whole kernel, in the same run.
"""

import argparse
import importlib.util
import statistics
import tempfile
from pathlib import Path

from bench.mlp import gpu_times
from common.recorded import ROOT

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

TRITON, GLUON = "05_fused_mlp.py", "fused_gluon.py"
ONE = {  # one configuration each, so that nothing is tuned
    TRITON: [("            (128, 128, 64, 8, 3, 8),\n", "")]
    + [
        (f"            ({row}),\n", "")
        for row in ("128, 64, 64, 8, 5, 4", "128, 64, 64, 8, 4, 8", "64, 128, 64, 8, 4, 8", "64, 64, 64, 8, 5, 4")
    ]
    + [("            (64, 32, 128, 8, 5, 4),\n", "")],
    GLUON: [
        ('"STAGES"), (128, 4), (64, 6), (32, 8))', '"STAGES"), (128, 4))'),
        (", (2, 256, 4), (2, 128, 6), (2, 32, 8))", ")"),
    ],
}
LATE = """        tma.store_wait(0)
        staged.store(joined(done, PIECES))
        fence_async_shared()
        store(out, [row, column], staged)
"""
AT_ONCE = """        tma.store_wait(0)
        staged.store(finish(waiting, out.dtype))
        fence_async_shared()
        store(out, [row, column], staged)
"""
WAITING = "        waiting, row, column = pack(both, out.dtype), m * BM + 64 * HALF, n * BN\n"
EXACT = """        mul.f32 t, t, 0fC038AA3B;
        ex2.approx.ftz.f32 t, t;
        add.f32 t, t, 0f3F800000;
        rcp.approx.ftz.f32 t, t;
        mul.f32 u, u, g;
        mul.f32 {to}, u, t;
"""
TRICKS = {  # what is left out -> (file, [(text, what stands there instead)])
    "tanh in one instruction: exponential and division": (
        TRITON,
        [("geglu(gate, up, FAST)", "geglu(gate, up, False)")],
    ),
    "one wide product: two products, two accumulators": (
        TRITON,
        [
            ('[2, args["BN"], args["BK"]]', '[1, args["BN"], args["BK"]]'),
            (
                "both = tl.zeros((BM, 2 * BN), tl.float32)",
                "gate, up = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)",
            ),
            ("b = w.load([0, n * BN, k * BK]).reshape(2 * BN, BK)", "b = w.load([0, n * BN, k * BK]).reshape(BN, BK)"),
            (
                "both = tl.dot(a, b.T, both)",
                "gate = tl.dot(a, b.T, gate)\n"
                "                up = tl.dot(a, w.load([1, n * BN, k * BK]).reshape(BN, BK).T, up)",
            ),
            ("gate, up = both.reshape(BM, 2, BN).permute(0, 2, 1).split()", "gate = gate"),
        ],
    ),
    "persistent: a program for each tile": (TRITON, [("sizes, tiles, most, *tensors", "sizes, tiles, None, *tensors")]),
    "loads under the epilogue: flatten=False": (TRITON, [("flatten=True", "flatten=False")]),
    "balanced: a program for each multiprocessor": (TRITON, [("sizes, tiles, most,", "sizes, lambda _: most, most,")]),
    "rows of tiles in groups: one after the other": (TRITON, [("(128, 128, 64, 8, 4, 8)", "(128, 128, 64, 1, 4, 8)")]),
    "4 stages: 3": (TRITON, [("(128, 128, 64, 8, 4, 8)", "(128, 128, 64, 8, 3, 8)")]),
    "GeGLU under the next products: at once": (
        GLUON,
        [
            ("            done = done + (finish(parts[p], out.dtype),)\n", ""),
            (LATE, ""),
            (WAITING, WAITING + AT_ONCE),
            ("    tma.store_wait(0)\n" + AT_ONCE.replace("        ", "    ").split("\n", 1)[1], ""),
        ],
    ),
    "in 8 pieces: in 2": (GLUON, [("PIECES: gl.constexpr = BN // 16", "PIECES: gl.constexpr = BN // 64")]),
    "tanh.approx: exponential and division": (
        GLUON,
        [
            (
                "        tanh.approx.f32 t, t;\n        mul.f32 u, u, g;\n        mul.f32 u, u, 0f3F000000;\n"
                "        fma.rn.f32 {to}, u, t, u;\n",
                EXACT,
            )
        ],
    ),
    "balanced: a block for each multiprocessor": (
        GLUON,
        [("x.device), tiles, most,", "x.device), lambda _: most, most,")],
    ),
    "4 stages: 3 ": (GLUON, [('"STAGES"), (128, 4))', '"STAGES"), (128, 3))')]),
}
DOWNS = {
    "3 x 64 rows a tile: 2 x 64, 128 columns": (GLUON, [("(3, 256, 3)", "(2, 128, 6)")]),
    "put in place early: after the kernel before": (GLUON, [("launch_pdl=True", "launch_pdl=False")]),
}


def without(file: str, changes: list[tuple[str, str]], number: int) -> str:
    """The source with one configuration, and with the changes; its ops are of a namespace of their own."""
    text = (ROOT / file).read_text()
    for old, new in ONE[file] + changes:
        if old not in text:
            raise ValueError(f"{file} has no {old!r} to replace")
        text = text.replace(old, new)
    return text.replace("ladder::", f"trick{number}::").replace("torch.ops.ladder", f"torch.ops.trick{number}")


def loaded(folder: Path, number: int, file: str, changes: list[tuple[str, str]]):
    path = folder / f"trick{number}.py"
    path.write_text(without(file, changes, number))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="uv run -m bench.tricks", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        parser.exit(1, "bench.tricks: this needs a Hopper GPU (H100, H200)\n")
    torch.manual_seed(0)
    x, weight, down = (
        torch.randn(shape, device="cuda").bfloat16() for shape in ((8192, 768), (2, 3072, 768), (768, 3072))
    )
    h = torch.randn(8192, 3072, device="cuda").bfloat16()
    whole = {TRITON: "the kernel in Triton", GLUON: "the kernel in Gluon"}
    calls, of = {}, {}
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        ups = {whole[TRITON]: (TRITON, []), whole[GLUON]: (GLUON, [])} | TRICKS
        for number, (what, (file, changes)) in enumerate(ups.items()):
            module = loaded(Path(name), number, file, changes)
            calls[what], of[what] = (lambda op=module.geglu_up: op(x, weight)), whole[file]
        mlps = {"the MLP in Gluon": (GLUON, [])} | DOWNS
        for number, (what, (file, changes)) in enumerate(mlps.items(), len(calls)):
            module = loaded(Path(name), number, file, changes)
            calls[what] = lambda m=module: m.down(m.geglu_up(x, weight), down)
            of[what] = "the MLP in Gluon"
        calls["our own down: cuBLAS"] = lambda m=module: F.linear(m.geglu_up(x, weight), down)
        of["our own down: cuBLAS"] = "the MLP in Gluon"
        calls["gate and up by cuBLAS, nothing between"] = lambda: (F.linear(x, weight[0]), F.linear(x, weight[1]))
        of["gate and up by cuBLAS, nothing between"] = whole[GLUON]
        calls["the three GEMMs by cuBLAS, nothing between"] = lambda: (
            *(F.linear(x, w) for w in weight),
            F.linear(h, down),
        )
        of["the three GEMMs by cuBLAS, nothing between"] = "the MLP in Gluon"
        for call in calls.values():
            call()
        middle = {what: statistics.median(times) for what, times in gpu_times(calls).items()}
    table = Table("trick: what stands in its place", "GPU us", "to the whole", box=None, pad_edge=False)
    for what, base in of.items():
        table.add_row(what, f"{middle[what]:.1f}", f"{middle[what] / middle[base]:.3f}")
    console = Console(highlight=False, width=120)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    console.print(table)


if __name__ == "__main__":
    main()
