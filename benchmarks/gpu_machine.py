"""Which GPU, driver and versions figures are of."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import jax

from trainer.planner.gpu import described
from trainer.run_folder import PACKAGES, version

QUERY = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,memory.total,memory.used,utilization.gpu"


def check(device: jax.Device, dry: bool) -> list[str]:
    """Prints them, and whether the planner knows the GPU; nothing can be wrong."""
    print(f"{len(jax.devices())} x {device.device_kind}; {platform.machine()}, {os.cpu_count()} CPUs")
    print(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    print(f"commit {_output('git', 'describe', '--always', '--dirty')}")
    if not dry:
        print(_output("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"))
        if described(device.device_kind) is None:
            print("The planner has no roofline of it.")
    return []


def _output(*command: str) -> str:
    """What a command prints, if it is there."""
    if shutil.which(command[0]) is None:
        return f"no {command[0]}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parents[1])
    return (done.stdout or done.stderr).strip()
