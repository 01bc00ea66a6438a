"""Host memory of saving and loading, again and again.

    python -m benchmarks.checkpoint_memory FOLDER [--megabytes 512]

FOLDER is on a local disk, with room for twice the state. A state in arrays of a decoder's sizes, on one CPU device
whose memory is the host's, is saved 30 times; after each, the resident memory is noted: none of the last 29 may differ
from the first by more than 3 %. The kernel counts how much more than before the process has at most in a save, and in a
load beside what is loaded: a constant, the same for a state of half the size. Exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from benchmarks.checkpoint_speed import state
from benchmarks.common import show
from benchmarks.offload_memory import MIB, forget, memory
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.blocks import BLOCK, THREADS
from trainer.offload.buffers import allocate

SAVES = 30
MOST_GROWN = 0.03
CONSTANT = THREADS * BLOCK + 32 * MIB
"""Bytes: the buffers, and what Python and threads take."""


class Measured:
    """What 30 saves and a load of so many bytes take."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        host = state(num_bytes)
        self.num_bytes = sum(array.nbytes for array in host.values())
        checkpoints = Checkpoints(folder, keep=1)
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for name, x in host.items()}
        self.after: list[int] = []
        self.of_save = 0
        for step in range(SAVES):
            arrays = jax.block_until_ready({name: jax.device_put(_copy(x), sharding) for name, x in host.items()})
            forget()
            before = memory("VmRSS")
            checkpoints.save(step, arrays, {})
            checkpoints.wait()
            self.of_save = max(self.of_save, memory("VmHWM") - before)
            del arrays
            gc.collect()  # jax gives back only then what NumPy has made
            self.after.append(memory("VmRSS"))
        del host
        forget()
        before = memory("VmRSS")
        loaded = jax.block_until_ready(checkpoints.restore(SAVES - 1, abstract))
        self.of_load = memory("VmHWM") - before - self.num_bytes
        del loaded

    @property
    def grown(self) -> float:
        """How far the memory after a save is from that after the first, at most, relative to it."""
        return max(abs(size / self.after[0] - 1) for size in self.after)


def _copy(array: np.ndarray) -> np.ndarray:
    """In pages that the system takes back at once; the C library would keep some of up to 32 MiB."""
    copy = allocate(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def main(place: Path, num_bytes: int) -> int:
    """Prints the table; whether a limit was passed."""
    rows, failed = [], False
    for size in (num_bytes // 2, num_bytes):
        with tempfile.TemporaryDirectory(dir=place) as folder:
            found = Measured(Path(folder), size)
        failed = failed or found.grown > MOST_GROWN or max(found.of_save, found.of_load) > CONSTANT
        sizes = (found.num_bytes, found.after[0], found.after[-1], found.of_save, found.of_load)
        rows.append([*(f"{count / MIB:,.0f}" for count in sizes), f"{found.grown:.2%}"])
    title = f"MiB; {SAVES} saves of a state, then a load; beside the state, at most {CONSTANT / MIB:.0f} are allowed"
    columns = ["state", "after 1 save", f"after {SAVES}", "more in a save", "more in a load", "largest change"]
    show(title, columns, rows)
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=512)
    options = parser.parse_args()
    sys.exit(main(options.folder, int(options.megabytes * 1e6)))
