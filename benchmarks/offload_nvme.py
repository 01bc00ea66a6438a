"""How fast offloaded records travel to and from a disk, beside what fio moves with the same requests.

    python -m benchmarks.offload_nvme FOLDER [--rounds 7] [--engine libaio]

FOLDER is on the disk to be measured; 2 GiB are taken there, and given back. Ours is the time of a whole sweep of
`trainer.offload.nvme.Nvme`, from its call to its end, by a visitor who does nothing. fio reads or writes a file of that
size once, past the page cache as we do, with requests of the same size and as many at a time; its start is not counted.
It too is given huge pages (where its buffers come to 2 MiB and more), which makes it twice as fast on a virtual disk,
and told to leave what it writes as it is. The two take turns, and the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ratio, show
from trainer.offload.nvme import Nvme
from trainer.units import binary

GOAL, MIB = 0.9, 2**20
RECORDS = [64 * MIB] * 16
NUM_BYTES = sum(RECORDS)
BLOCKS = [MIB // 4, MIB, 4 * MIB]
DEPTHS = [4, 8, 16, 32]
BUFFERS = [1, 2, 3, 4, 6, 8]
HUGE_PAGES = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
SWEEPS = {
    "read": ({"write": False}, "read", 1),
    "write": ({"read": False}, "write", 1),
    "both": ({}, "rw", 2),
}
"""What each is called: how we sweep, what fio does, how many times the records' bytes we move."""


class Fio:
    """Moves the bytes of a file of its own."""

    def __init__(self, file: Path, engine: str) -> None:
        self.command = ["fio", "--name=all", f"--filename={file}", f"--size={NUM_BYTES}", f"--ioengine={engine}"]
        self.command += ["--direct=1", "--scramble_buffers=0", "--output-format=json"]
        self.rate("write", 4 * MIB, 8)  # what has never been written is slower to write, and faster to read

    def rate(self, what: str, block: int, depth: int) -> float:
        """Bytes a second, those read and those written together."""
        command = [*self.command, f"--rw={what}", f"--bs={block}", f"--iodepth={depth}"]
        output = subprocess.run(command, capture_output=True, text=True, check=True, env=HUGE_PAGES).stdout
        (job,) = json.loads(output[output.index("{") :])["jobs"]  # warnings may come first
        return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]


def seconds(tier: Nvme, work: float = 0.0, **how: bool) -> float:
    """How long a sweep takes whose visitor spends `work` seconds on each record."""
    start = time.perf_counter()
    for _ in tier.sweep(range(len(RECORDS)), **how):
        time.sleep(work)
    return time.perf_counter() - start


@contextlib.contextmanager
def filled(folder: Path, **options: Any) -> Iterator[Nvme]:
    """A tier whose records hold random bytes."""
    noise = np.random.default_rng(0).integers(256, size=max(RECORDS), dtype=np.uint8)
    with contextlib.closing(Nvme(folder / "records", RECORDS, **options)) as tier:
        for _, array in tier.sweep(range(len(RECORDS)), read=False):
            array[:] = noise
        yield tier


def beside_fio(folder: Path, fio: Fio, rounds: int) -> None:
    """Over the sizes of requests and how many there are at a time: what the defaults are chosen by."""
    rows = []
    for block, depth in itertools.product(BLOCKS, DEPTHS):
        ours: dict[str, list[float]] = {name: [] for name in SWEEPS}
        theirs: dict[str, list[float]] = {name: [] for name in SWEEPS}
        cpu = []
        with filled(folder, block=block, depth=depth) as tier:
            for _, (name, (how, what, times)) in itertools.product(range(rounds), SWEEPS.items()):
                begin = time.process_time()
                ours[name].append(times * NUM_BYTES / seconds(tier, **how))
                cpu.append((time.process_time() - begin) / times / NUM_BYTES * 1e9)
                theirs[name].append(fio.rate(what, block, depth))
        cells = [f"{statistics.median(rates[name]) / 1e9:.2f}" for name in SWEEPS for rates in (ours, theirs)]
        ratios = [f"{ratio(ours[name], theirs[name]):.2f}" for name in SWEEPS]
        rows.append([binary(block), str(depth), *cells, *ratios, f"{statistics.median(cpu):.2f}"])
    title = f"GB/s, median of {rounds} rounds; the ratio of ours to fio's is to be at least {GOAL}"
    columns = [f"{name}{who}" for name in SWEEPS for who in ("", ", fio")]
    show(title, ["block", "depth", *columns, *(f"{name} ratio" for name in SWEEPS), "CPU s/GB"], rows)


def overlap(folder: Path, rounds: int) -> None:
    """How many buffers it takes to hide the disk behind work, which here takes no processor: the visitor sleeps."""
    rows = []
    for buffers in BUFFERS:
        with filled(folder, buffers=buffers) as tier:
            alone, beside = [], []
            for _ in range(rounds):
                alone.append(seconds(tier))
                beside.append(seconds(tier, work=alone[-1] / len(RECORDS)))
            rate = 2 * NUM_BYTES / statistics.median(alone) / 1e9
            rows.append([str(buffers), f"{rate:.2f}", f"{ratio(beside, alone):.2f}"])
    title = (
        "A sweep that reads and writes; its time with a visitor who works as long as it takes without him, 1 at best"
    )
    show(title, ["buffers", "GB/s", "with work / without"], rows)


def memory(folder: Path) -> None:
    """Whether a file larger than the buffers takes no more host memory than these."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    with contextlib.closing(Nvme(folder / "records", RECORDS)) as tier:
        for _, array in tier.sweep(range(len(RECORDS)), read=False):
            array[:] = 1
        for _, array in tier.sweep(range(len(RECORDS))):
            array += 1
        grown, buffers, file = status("VmHWM") - before, tier.host_bytes, tier.file_bytes
    show("Host memory at its peak", ["file", "buffers", "grown by"], [[binary(file), binary(buffers), binary(grown)]])


def status(key: str) -> int:
    """Bytes that the kernel tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{key}:"))
    return int(kib) * 1024


def main(place: Path, rounds: int, engine: str) -> None:
    if shutil.which("fio") is None:
        raise SystemExit("This compares with fio, which is not installed; most systems have a package of that name")
    version = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    mount = subprocess.run(["df", "--output=source,fstype", place], capture_output=True, text=True, check=True).stdout
    records = f"{len(RECORDS)} records of {binary(RECORDS[0])}"
    print(f"{version}, {engine}; Linux {platform.release()}; {' '.join(mount.split()[-2:])}; {records}")
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        memory(folder)
        overlap(folder, rounds)
        beside_fio(folder, Fio(folder / "fio", engine), rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", default="libaio")
    options = parser.parse_args()
    main(options.folder, options.rounds, options.engine)
