"""Host memory of a run whose optimizer state is on NVMe: what it takes at most, beside what was planned.

    python -m benchmarks.offload_memory DIR    a folder on a local disk, with room for twice the state

A decoder of 172 million parameters trains a few steps on one CPU device, whose memory is the host's: what is planned
is that of the device (as XLA says of the compiled step), and that of `trainer.off_device`. The state is many times what
the second allows for it. Then it is saved, and restored, an array at a time. The kernel counts how much the process has
at most, beyond what it has once all is compiled. Exits with 1 where that is more than 1.1 times the plan.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks.common import Sizes, show
from sharding.mesh import make_mesh
from trainer.checkpoint import Checkpoints
from trainer.config import Config
from trainer.off_device import off_device
from trainer.offload.make import make_keeper
from trainer.program import Program

STEPS = 3
MOST = 1.1
MIB = 2**20
SIZES = Sizes(layers=12, hidden=1024, heads=8, ffn=3072, vocab=4096, sequence=64, batch=1)


def config(folder: str) -> Config:
    """Buckets of 1 Mi elements, so that the buffers are small beside the state."""
    offload = {"optimizer": "nvme", "path": folder, "bucket": MIB, "buffers": 4}
    return SIZES.config(precision={"compute": "bfloat16"}, recompute={"policy": "full"}, offload=offload)


def memory(name: str) -> int:
    """Bytes of this process' resident memory: `VmRSS` now, `VmHWM` at most since the last `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def forget() -> None:
    """From here on, `VmHWM` is what the process has at most."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def main(folder: str) -> int:
    """Prints the table; whether the process took more than it may."""
    program = Program(config(folder), make_mesh(config(folder).mesh, jax.devices()[:1]))
    step: Any = program.step
    compiled = step.lower(program.abstract_state(), program.abstract_batch()).compile().memory_analysis()
    of_step = compiled.argument_size_in_bytes + compiled.output_size_in_bytes + compiled.temp_size_in_bytes
    of_step -= compiled.alias_size_in_bytes
    planned = off_device(program.config, program.layouts, 0)
    largest = 4 * max(array.size for array in program.abstract_state().parameters.values())

    batch = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), SIZES.rows(), program.abstract_batch())
    keeper = make_keeper(program, print)
    keeper.initialise()
    keeper.step(batch)
    del keeper
    forget()
    before = memory("VmRSS")
    keeper = make_keeper(program, lambda _: None)
    rows, most = [], 0.0

    def note(what: str, plan: int) -> None:
        nonlocal most
        found = memory("VmHWM") - before
        most = max(most, found / plan)
        rows.append([what, *(f"{size / MIB:,.0f}" for size in (plan, found)), f"{found / plan:.2f}"])
        forget()

    keeper.initialise()
    note("made at the start", of_step + planned.host + largest)
    for _ in range(STEPS):
        keeper.step(batch)
    note(f"{STEPS} steps", of_step + planned.host)
    with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
        saved = Checkpoints(checkpoints, keep=1)
        saved.save(STEPS, keeper.logical(), {})
        saved.close()
        note("saved, an array at a time", of_step + planned.host + 2 * largest)
        keeper.restore(partial(saved.restore, STEPS, keeper.abstract()))
        note("restored", of_step + planned.host + 6 * largest)
    times = f"{planned.nvme / planned.host:.1f} x the host memory for it"
    title = f"{planned.nvme / MIB:,.0f} MiB of state on NVMe, {times}"
    show(title, ["", "MiB planned", "at most", "of the plan"], rows)
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
