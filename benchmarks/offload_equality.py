"""Offload on trains as offload off does: fifty steps of each, and how many bits of the two states differ in the end.

    python -m benchmarks.offload_equality            all rows; writes benchmarks/results/offload-equality-DATE.txt
    python -m benchmarks.offload_equality WORD...    the rows with one of these words, and writes nothing

Each row trains the same batches on virtual CPU devices from the same initial state. Compared are all logical arrays
(weights, moments, counters) and the loss and gradient norm of every step. Rows with two processes exchange gradients by
gloo, and each process compares the shards that it holds. Exits with 1 where a bit differs.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.equality import on_devices
from sharding.mesh import make_mesh
from tests.trainer.layouts import LLAMA, Row, Task, batches
from trainer.checkpoint import Checkpoints, made
from trainer.config import Config
from trainer.keeper import Keeper
from trainer.offload.make import make_keeper
from trainer.program import Program
from trainer.run_folder import describe_environment

STEPS, STOPS = 50, (20, 35)
"""Steps of a run, and after which of them an interrupted one is resumed."""
DEVICES = 4
PROCESSES = 2
ADAMW = Task("llama", "packed", "adamw")
LION = Task("llama", "packed", "lion")
BFLOAT16 = {"precision.compute": "bfloat16"}
RESULTS = Path(__file__).parent / "results"


PLACES = {
    "none": {},
    "host": {"offload.optimizer": "host"},
    "nvme": {"offload.optimizer": "nvme"},
    "all on host": {"offload.optimizer": "host", "offload.parameters": "host"},
    "all on nvme": {"offload.optimizer": "nvme", "offload.parameters": "nvme"},
}
"""Of the optimizer's state, and of layers too; without them XLA rounds otherwise than with them on the devices."""


@dataclass(frozen=True)
class Comparison:
    """A layout, and where the state is in the run that is compared with one that keeps it elsewhere."""

    row: Row
    offload: tuple[str, ...] = ("host",)
    """Of `PLACES`, from the start, and after each stop."""
    settings: tuple[tuple[str, Any], ...] = ()
    processes: int = 1
    than: str = "none"
    """Where the other run keeps it."""

    def config(self, place: str, folder: Path) -> Config:
        offload: dict[str, Any] = PLACES[place]
        if offload:  # so that most parameters are several buckets, and some rows too
            offload = offload | {"offload.bucket": 500}
        if "nvme" in offload.values():
            offload = offload | {"offload.path": str(folder)}
        return Config.from_dict(self.row.config.to_dict(), {"train.steps": STEPS, **dict(self.settings), **offload})

    def __str__(self) -> str:
        processes = [f"{self.processes} processes"] if self.processes > 1 else []
        return " ".join([str(self.row), *(str(value) for _, value in self.settings), *processes])


COMPARISONS = [
    *(Comparison(Row(ADAMW, zero=stage, data=2)) for stage in range(4)),
    *(Comparison(Row(ADAMW, zero=stage, data=2, accumulation=4), ("nvme",)) for stage in range(4)),
    Comparison(Row(ADAMW, zero=1, pipeline=2, data=2, accumulation=4), ("nvme",)),
    Comparison(Row(ADAMW, zero=2, data=2, tensor=2)),
    Comparison(Row(LION, zero=3, data=2)),
    Comparison(Row(LLAMA, zero=1, data=3)),
    Comparison(Row(ADAMW, zero=1, data=2), ("nvme",), tuple(BFLOAT16.items())),
    Comparison(Row(ADAMW, zero=3, data=2, accumulation=4), ("host",), tuple(BFLOAT16.items())),
    Comparison(Row(ADAMW, zero=2, data=2), ("host", "none", "nvme")),
    Comparison(Row(ADAMW, zero=2, data=4), ("host",), (), PROCESSES),
    Comparison(Row(ADAMW, zero=3, data=2), ("all on nvme",), than="all on host"),
    Comparison(Row(ADAMW, zero=3, data=2, replica=2, accumulation=4), ("all on nvme",), than="all on host"),
    Comparison(
        Row(ADAMW, zero=3, data=2, accumulation=4), ("all on nvme",), tuple(BFLOAT16.items()), than="all on host"
    ),
    Comparison(Row(ADAMW, zero=3, data=2), ("all on nvme", "all on host", "all on nvme"), than="all on host"),
    Comparison(Row(ADAMW, zero=3, data=4), ("all on nvme",), (), PROCESSES, than="all on host"),
]


@dataclass(frozen=True)
class Run:
    """What a run leaves behind."""

    course: np.ndarray
    """float32 [steps, 2]: loss and gradient norm."""
    state: dict[str, list[np.ndarray]]
    """By name, the shards of the logical array that this process holds."""
    seconds: float


@dataclass(frozen=True)
class Difference:
    """Of two runs."""

    bits: int
    """Of the state and the course."""
    of: int
    apart: float
    """L2 norm of the difference of all weights, relative to that of the weights."""
    seconds: tuple[float, float]
    """Of both; programs are compiled in them."""

    def __str__(self) -> str:
        return f"{self.bits:>7,} of {self.of:<10,} {self.apart:8.1e} {self.seconds[0]:8.1f} {self.seconds[1]:7.1f}"


def compare(comparison: Comparison) -> Difference:
    """Trains both, in this process and on the devices that it sees."""
    off, on = train(comparison, (comparison.than,)), train(comparison, comparison.offload)
    assert off.state.keys() == on.state.keys(), "a state has the same arrays wherever it is kept"
    pairs = [(off.course, on.course)]
    for name, shards in off.state.items():
        pairs += zip(shards, on.state[name], strict=True)
    weights = [name for name in off.state if name.startswith("parameters.")]
    apart = _norm([a - b for name in weights for a, b in zip(off.state[name], on.state[name], strict=True)])
    whole = _norm([shard for name in weights for shard in off.state[name]])
    return Difference(
        sum(_bits(a, b) for a, b in pairs),
        sum(8 * a.nbytes for a, _ in pairs),
        apart / whole,
        (off.seconds, on.seconds),
    )


def train(comparison: Comparison, offload: Sequence[str]) -> Run:
    """Fifty steps, interrupted where there is more than one place for the state."""
    start, course, texts = time.perf_counter(), [], batches(comparison.row.task.text)
    stops = (*STOPS[: len(offload) - 1], STEPS)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Checkpoints(Path(folder, "run"), 3)) as saved:
        first = 0
        for place, last in zip(offload, stops, strict=True):
            keeper = _keeper(comparison, place, Path(folder), saved)
            for step in range(first, last):
                batch = on_devices(keeper.program, texts[step % len(texts)])
                metrics = keeper.step(batch)
                course.append([float(metrics.loss), float(metrics.grad_norm)])
            if last < STEPS:
                saved.save(last, keeper.logical(), {})
                saved.wait()
            first = last
        state = {
            name: [np.asarray(shard.data) for shard in array.addressable_shards]
            for name, array in made(keeper.logical()).items()
        }
    return Run(np.array(course, np.float32), state, time.perf_counter() - start)


def _keeper(comparison: Comparison, place: str, folder: Path, saved: Checkpoints) -> Any:
    """At the start, or where the newest checkpoint is."""
    config = comparison.config(place, folder)
    program = Program(config, make_mesh(config.mesh, jax.devices()[: comparison.row.num_devices]))
    keeper: Keeper = make_keeper(program, lambda note: None)
    if (newest := saved.newest()) is None:
        keeper.initialise()
    else:
        keeper.restore(partial(saved.restore, newest, keeper.abstract()))
    return keeper


def _bits(one: np.ndarray, other: np.ndarray) -> int:
    """How many differ; two arrays of another shape or dtype are not to be compared."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    return int(np.bitwise_count(_bytes(one) ^ _bytes(other)).sum())


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8)


def _norm(leaves: Sequence[np.ndarray]) -> float:
    return float(np.linalg.norm([np.linalg.norm(leaf.astype(np.float64)) for leaf in leaves]))


def compare_by_processes(number: int, count: int) -> list[Difference]:
    """What each of so many new processes finds, which share the devices out evenly."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "benchmarks.offload_equality", "--process"]
    started = [
        subprocess.Popen([*command, json.dumps([number, address, count, index])], stdout=subprocess.PIPE, text=True)
        for index in range(count)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"one of {count} processes failed")
    return [Difference(**json.loads(output.splitlines()[-1])) for output in outputs]


def be_one_of_many(number: int, address: str, count: int, index: int) -> None:
    """Prints, as JSON, what this process finds."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _use_cpus(DEVICES // count)
    jax.distributed.initialize(address, count, index)
    print(json.dumps(vars(compare(COMPARISONS[number]))), flush=True)
    jax.distributed.shutdown()


def _use_cpus(devices: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)


def main(words: list[str]) -> int:
    """Prints a line for each row; how many rows have a bit that differs."""
    _use_cpus(DEVICES)
    lines = [*_header(), f"{'row':<58} {'offloaded to':<20} {'bits that differ':<21} {'apart':>8} {'off':>8} {'on':>7}"]
    print("\n".join(lines))
    failed = 0
    for number, comparison in enumerate(COMPARISONS):
        places = " -> ".join(comparison.offload) + (f" as {comparison.than}" if comparison.than != "none" else "")
        if words and not any(word in f"{comparison} {places}" for word in words):
            continue
        alone = comparison.processes == 1
        found = [compare(comparison)] if alone else compare_by_processes(number, comparison.processes)
        failed += any(difference.bits for difference in found)
        for difference in found:
            lines.append(f"{comparison!s:<58} {places:<20} {difference}")
            print(lines[-1], flush=True)
    lines.append(f"{failed} rows differ.")
    print(lines[-1])
    if not words:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"offload-equality-{datetime.date.today()}.txt"
        path.write_text("\n".join(lines) + "\n")
        print(f"written to {path}")
    return failed


def _header() -> Iterator[str]:
    """What ran, and where."""
    environment: Mapping[str, Any] = describe_environment([], None)
    packages = ", ".join(f"{name} {environment['packages'][name]}" for name in ("jax", "jaxlib", "optax", "numpy"))
    yield "command:  python -m benchmarks.offload_equality"
    yield f"date:     {environment['start']}"
    yield f"commit:   {environment['git_commit']}"
    yield f"machine:  {platform.system()} {platform.machine()}, {os.cpu_count()} cores, {DEVICES} virtual CPU devices"
    yield f"versions: python {environment['python']}, {packages}"
    yield f"measured: {STEPS} steps with offload against {STEPS} without, or as said; all logical arrays at the end,"
    yield "          loss and gradient norm of every step, bit by bit; apart: the L2 norm of the difference of all"
    yield "          weights over that of the weights. A -> B -> C: stopped, saved and resumed after steps"
    yield f"          {STOPS[0]} and {STOPS[1]}. off, on: seconds of the two, most of them XLA's for compiling."
    yield ""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        be_one_of_many(*json.loads(sys.argv[2]))
    else:
        sys.exit(main(sys.argv[1:]) > 0)
