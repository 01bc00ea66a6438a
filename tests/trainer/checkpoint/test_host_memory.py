"""The host's memory: a load takes little beside what it loads, and many saves take no more than one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MIB = 2**20
BLOCKS = 64 * MIB
"""Buffers of the threads that read and write."""

COUNT = """
import re, sys
from pathlib import Path
import jax, jax.numpy as jnp
from trainer.checkpoint import Checkpoints

def memory(kind):
    return 1024 * int(re.search(kind + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def arrays(step):
    return {str(n): jnp.full((1024, 1024), float(step + n)) for n in range(SIZE)}

checkpoints = Checkpoints(sys.argv[1], keep=1)
def save(step):
    checkpoints.save(step, arrays(step), {})
    checkpoints.wait()
"""
SAVES = """
SIZE = 4
for step in range(40):
    save(step)
    if step in (9, 39):
        print(memory("VmRSS"))
"""
LOADS = """
SIZE = 48
abstract = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays(0).items()}
save(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
before = memory("VmRSS")
held = checkpoints.restore(0, abstract)
print(memory("VmHWM") - before - sum(x.nbytes for x in held.values()))
"""


def measured(code: str, folder: Path) -> list[int]:
    command = [sys.executable, "-c", COUNT + code, str(folder)]
    return [int(line) for line in subprocess.check_output(command, text=True, cwd=ROOT, timeout=200).split()]


def test_saves_leave_nothing_behind(tmp_path: Path) -> None:
    """Thirty saves of 16 MiB."""
    after_ten, after_forty = measured(SAVES, tmp_path)
    assert after_forty - after_ten < 32 * MIB


def test_a_load_needs_little_beside_what_it_loads(tmp_path: Path) -> None:
    """Of 192 MiB."""
    (beside,) = measured(LOADS, tmp_path)
    assert beside < BLOCKS + 32 * MIB
