"""How fast `show` reads a large trace, beside json, orjson and Holistic Trace Analysis, in one run.

    uv run --with HolisticTraceAnalysis==0.5.0 --with orjson -m bench.read_trace

It writes a trace of 1.09 million events in kineto's layout (the recorded eager MLP, over and over) into a temporary
folder, lets each reader add up the GPU time by kernel name in a process of its own, and prints seconds, peak
memory, and ratios to ours. Totals must agree with json's to the nanosecond. A reader that is not installed is left out.
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "traces/recorded/h200/03_simple_mlp/64x128x768x3072_bf16_warm_eager.json.gz"

ROUND_US, STEPS = 10_000.0, 10

OURS = """
from common import events, reading, work
steps = work.per_step(reading.read(Path(sys.argv[1])))
for row in steps.rows:
    totals[row.name] = totals.get(row.name, 0.0) + sum(row.times)
"""
PLAIN = """
for event in load(open(sys.argv[1], "rb").read())["traceEvents"]:
    if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        totals[event["name"]] = totals.get(event["name"], 0.0) + event["dur"]
"""
HTA = """
import logging, shutil
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
folder = Path(sys.argv[1]).parent / "hta"
folder.mkdir(exist_ok=True)
shutil.copy(sys.argv[1], folder / "rank0.json")
analysis = TraceAnalysis(trace_files={0: str(folder / "rank0.json")}, trace_dir=str(folder))
_, by_kernel = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1000, include_memory_kernels=True)
totals = dict(zip(by_kernel["name"], by_kernel["sum (us)"]))
"""
READERS = {
    "ours (show)": OURS,
    "json": "import json\nload = json.loads" + PLAIN,
    "orjson": "import orjson\nload = orjson.loads" + PLAIN,
    "Holistic Trace Analysis": HTA,
}
FRAME = """
import json, resource, sys, time
from pathlib import Path
start, totals = time.perf_counter(), {{}}
{body}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
print(json.dumps({{"s": time.perf_counter() - start, "mb": peak, "totals": totals}}))
"""


STEP = """
  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{n}", "pid": {pid}, "tid": {pid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": {n}
    }}
  }},"""


def write_trace(path: Path, events: int) -> int:
    """The recorded steps again and again, inside STEPS longer ones, each later and with ids of its own.

    Returns how many events that is.
    """
    text = gzip.decompress(SOURCE.read_bytes()).decode()
    begin, end = text.index('"traceEvents": [') + len('"traceEvents": ['), text.rindex("\n  ]")
    body = text[begin:end].replace("ProfilerStep#", "Round ")
    each = body.count("\n  },\n  {") + 1
    rounds = -(-events // each)
    first = re.search(r'"pid": (\d+), "tid": \d+,\s*"ts": ([\d.]+)', body)
    pid, start, span = int(first[1]), float(first[2]) - 1, ROUND_US * rounds / STEPS
    ids, times = re.compile(r'("correlation"|"External id"): ?(\d+)'), re.compile(r'"ts": ([\d.]+)')
    with path.open("w") as file:
        file.write(text[:begin])
        for n in range(STEPS):
            file.write(STEP.format(n=n + 1, pid=pid, ts=start + n * span, dur=span))
        for i in range(rounds):
            later = times.sub(lambda m, i=i: f'"ts": {float(m[1]) + ROUND_US * i:.3f}', body)
            file.write("," * (i > 0) + ids.sub(lambda m, i=i: f"{m[1]}: {int(m[2]) + 1000 * i}", later))
        file.write(text[end:])
    return rounds * each + STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_090_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        count = write_trace(path, args.events)
        print(f"{count:,} events, {path.stat().st_size / 1e6:,.0f} MB", flush=True)
        found = {}
        for name, body in READERS.items():
            done = subprocess.run(
                [sys.executable, "-c", FRAME.format(body=body), path], cwd=ROOT, capture_output=True, text=True
            )
            if done.returncode:
                print(f"{name}: left out ({done.stderr.strip().splitlines()[-1][:100]})", flush=True)
                continue
            found[name] = json.loads(done.stdout.splitlines()[-1])
            print(f"{name}: {found[name]['s']:.2f} s, {found[name]['mb']:,.0f} MB at most", flush=True)
    ours, plain = found["ours (show)"], found["json"]
    for name, result in found.items():
        print(f"{name}: {result['s'] / ours['s']:.2f} x our time, {result['mb'] / ours['mb']:.2f} x our memory")
    apart = max(abs(ours["totals"].get(name, 0.0) - total) for name, total in plain["totals"].items())
    whole = sum(plain["totals"].values())
    print(f"largest difference of a kernel's total to json's: {apart * 1e3:.6f} ns, of {whole:,.0f} us in all")
    if apart * 1e3 >= 1 or set(ours["totals"]) != set(plain["totals"]):
        sys.exit("totals differ")


if __name__ == "__main__":
    main()
