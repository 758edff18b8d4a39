"""What torch finds on this machine, as JSON. `doctor` runs it in a process of its own: torch may hang or crash."""

import json
from typing import Any

from common import device as machine
from common.doctor import MARK
from common.session import quiet

import torch
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    device, why = machine.choose(None)
    facts: dict[str, Any] = {"versions": machine.versions(), "device": device, "why": why, "name": machine.name(device)}
    for key, check in (
        ("compile", lambda: machine.check_compiler(device, "--compile")),
        ("triton", lambda: machine.check_compiler("cuda", "Triton")),
        ("dtype", lambda: machine.check_dtype(device, "bf16")),
    ):
        try:
            check()
            facts[key] = None
        except machine.CannotRun as error:
            facts[key] = str(error)
    with quiet():
        facts["recorded"] = _profiled(device)
    facts["free_bytes"] = torch.cuda.mem_get_info()[0] if device == "cuda" else None
    print(f"{MARK}{json.dumps(facts)}", flush=True)  # behind whatever torch has printed


def _profiled(device: str) -> int:
    """How many events of that device the profiler records of one addition."""
    x = torch.ones(8, device=device)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=activities) as prof:
        x + 1
        if device == "cuda":
            torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA if device == "cuda" else torch.autograd.DeviceType.CPU
    return sum(event.device_type == kind for event in prof.events())


if __name__ == "__main__":
    main()
