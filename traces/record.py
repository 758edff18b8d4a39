"""Record the ladder on this machine's GPU: every command in a process of its own, then one .tar of their traces.

    uv run traces/record.py h200.tar
    mkdir -p traces/recorded/h200 && tar xf h200.tar -C traces/recorded/h200

The tar holds <lesson>/<config>.json.gz and .txt, and RUNS.md: GPU, driver, versions, date, each file's command.
"""

import datetime
import gzip
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMANDS = [
    "01_matmul_add.py --size 64",
    "01_matmul_add.py --size 64 --warmup",
    "01_matmul_add.py --size 64 --warmup --compile",
    "01_matmul_add.py --size 64 --warmup --batched",
    "01_matmul_add.py --size 64 --schedule 0,0,20",
    "01_matmul_add.py --size 64 --warmup --schedule 0,0,20",
    "01_matmul_add.py --size 4096 --warmup",
    "01_matmul_add.py --size 4096 --warmup --compile",
    "01_matmul_add.py --size 4096 --warmup --schedule 0,0,20",
    "02_linear.py",
    "02_linear.py --compile",
    "03_simple_mlp.py",
    "03_simple_mlp.py --compile",
    "03_simple_mlp.py --compile max-autotune",
    "04_liger_mlp.py --source package",  # from the Hub where there is a network: the same layer
    "05_fused_mlp.py",
    "05_fused_mlp.py --kernel gluon",
]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: uv run traces/record.py OUT.tar")
    target = Path(sys.argv[1])
    rows = ["| file | command |", "|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command in COMMANDS:
            before = set(folder.rglob("*.json"))
            print(f"$ {command}", flush=True)
            script, *flags = command.split()
            done = subprocess.run(
                [sys.executable, ROOT / script, *flags, "--device", "cuda", "--out", folder], cwd=ROOT
            )
            if done.returncode:
                sys.exit(f"`{command}` failed: nothing was recorded")
            (path,) = set(folder.rglob("*.json")) - before
            rows.append(f"| {path.relative_to(folder).with_suffix('')} | `uv run {command}` |")
        about = json.loads(path.read_text())["lesson"]
        for path in folder.rglob("*.json"):
            path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
            path.unlink()
        driver = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        ).stdout
        versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
        driver = driver.split()[0] if driver else "unknown"
        head = f"{about['device']}, driver {driver}, {versions}, {datetime.date.today()}"
        (folder / "RUNS.md").write_text("\n".join([head, "", *rows]) + "\n")
        with tarfile.open(target, "w") as tar:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                tar.add(path, path.relative_to(folder))
    print(f"wrote {target}: unpack it with tar xf {target} -C traces/recorded/GPU")


if __name__ == "__main__":
    main()
