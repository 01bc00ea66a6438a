"""How fast a checkpoint is written and read, beside what dd moves past the page cache on the same disk.

    python -m benchmarks.checkpoint_speed FOLDER [--gigabytes 2] [--rounds 7]

FOLDER is on the disk to be measured; three times the state's size are taken there, and given back. The state is float32
noise on one CPU device, in arrays of the sizes that a decoder has. A save is timed from its call to its commit: with
checksums of all bytes, and until the disk has them. A restore is timed from its call until the arrays are there, all
checksums compared; as much memory is touched and given back right before, as a virtual machine may have to get it
first. dd writes and reads one file of that size (`bs=16M oflag=direct conv=fdatasync`, `iflag=direct`). They take
turns, and ratios are medians over the rounds. `save` blocks for as long as its call takes; then the next step begins.
Exits with 1 where a ratio is below 0.8, or a save blocks for more than 5 % of its time.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from benchmarks.common import ratio, show
from trainer.checkpoint import Checkpoints

GOAL, MOST_BLOCKED = 0.8, 0.05
MIB = 2**20
SHARES = {"embedding": 0.1, "mlp.up": 0.3, "mlp.gate": 0.3, "mlp.down": 0.25, "norm": 0.001}
"""Of the state's bytes; the rest are scalars."""


FINITE = np.uint32(0xBFFFFFFF)
"""All bits of a float32 but the first of its exponent."""


def state(num_bytes: int) -> dict[str, np.ndarray]:
    """Noise, by name: any bits but those of numbers that are not finite, which no checkpoint is made of."""
    rng = np.random.default_rng(0)
    bits = {
        name: rng.integers(2**32, size=(8, int(share * num_bytes) // 4 // 8), dtype=np.uint32)
        for name, share in SHARES.items()
    }
    return {name: (noise & FINITE).view(np.float32) for name, noise in bits.items()} | {"step": np.array(3, np.int32)}


class Dd:
    """dd, on a file of its own."""

    def __init__(self, file: Path, num_bytes: int) -> None:
        self._file, self._blocks = file, max(1, round(num_bytes / (16 * MIB)))
        self.write()  # what has never been written is slower to write

    def write(self) -> float:
        """Seconds per byte."""
        return self._run("if=/dev/zero", f"of={self._file}", "oflag=direct", "conv=fdatasync,notrunc")

    def read(self) -> float:
        """Seconds per byte."""
        return self._run(f"if={self._file}", "of=/dev/null", "iflag=direct")

    def _run(self, *what: str) -> float:
        begin = time.perf_counter()
        subprocess.run(["dd", "bs=16M", f"count={self._blocks}", *what], check=True, capture_output=True)
        return (time.perf_counter() - begin) / (self._blocks * 16 * MIB)


class Ours:
    """Saves and restores one state, again and again."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self._host = state(num_bytes)
        self._num_bytes = sum(array.nbytes for array in self._host.values())
        self._checkpoints = Checkpoints(folder, keep=1)
        self._step = 0
        self.blocked: list[float] = []

    def write(self) -> float:
        """Seconds per byte."""
        arrays = jax.block_until_ready(jax.device_put(self._host))
        self._step += 1
        begin = time.perf_counter()
        self._checkpoints.save(self._step, arrays, {})
        blocked = time.perf_counter() - begin
        self._checkpoints.wait()
        seconds = time.perf_counter() - begin
        self.blocked.append(blocked / seconds)
        return seconds / self._num_bytes

    def read(self) -> float:
        """Seconds per byte."""
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
            for name, array in self._host.items()
        }
        np.ones(self._num_bytes, np.uint8)
        begin = time.perf_counter()
        jax.block_until_ready(self._checkpoints.restore(self._step, abstract))
        return (time.perf_counter() - begin) / self._num_bytes


def main(place: Path, num_bytes: int, rounds: int) -> int:
    """Prints the table; whether a goal is missed."""
    mount = subprocess.run(["df", "--output=source,fstype", place], capture_output=True, text=True, check=True).stdout
    print(f"Linux {platform.release()}; {' '.join(mount.split()[-2:])}; a state of {num_bytes / 1e9:.2f} GB")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        ours, dd = Ours(Path(folder, "checkpoints"), num_bytes), Dd(Path(folder, "dd"), num_bytes)
        ours.write()
        calls: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "save": (ours.write, dd.write),
            "restore": (ours.read, dd.read),
        }
        times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
        for _ in range(rounds):
            for name, pair in calls.items():
                for call, found in zip(pair, times[name], strict=True):
                    found.append(call())
    rows, worst = [], 1.0
    for name, (mine, theirs) in times.items():
        speed = ratio(theirs, mine)
        worst = min(worst, speed)
        rates = [f"{1e-9 / statistics.median(found):.2f}" for found in (mine, theirs)]
        rows.append([name, *rates, f"{speed:.2f}"])
    show(f"GB/s, median of {rounds} rounds", ["", "ours", "dd", "ours / dd"], rows)
    blocked = statistics.median(ours.blocked)
    print(f"A save blocks for {blocked:.1%} of its time")
    return int(worst < GOAL or blocked > MOST_BLOCKED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    sys.exit(main(options.folder, int(options.gigabytes * 1e9), options.rounds))
