"""How close a step with an offloaded optimizer comes to its slowest lane: whether copies, disk and updates overlap.

    python -m benchmarks.offload_overlap [--folder DIR] [--rounds 7] [--lanes FILE.csv]

Two devices. `this CPU`: the trainer's own step on one core, with all that the host does on the other. `stand-in`: a
device that sleeps as long as a GPU would compute and as its link would copy, while all cores update; it computes 8,192
tokens a micro-batch at 100 TFLOP/s, and copies 25 GB/s each way (PCIe 4 x16).

A step's update cannot begin before the gradients are final, as clipping needs their norm, and the next step needs the
new weights. So a step takes at least its computation and, after it, the slowest of the other lanes: updates, copies
down and up, and the disk's reads with its writes. Each of these is measured alone too, in the same round. Columns:
seconds of the step, of its computation, and of each lane alone; the step over its slowest lane, computation included;
`rest`, what is not computation, over the slowest of the others; and how much of a step is rest, the device waiting:
exposed. Medians over the rounds; `best` is the shortest rest over the slowest lane at its fastest, which matters where
a machine has other work. DIR is on the disk to be measured; FILE gets the lanes of two steps, for docs/pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import Sizes, show
from sharding.mesh import make_mesh
from trainer.config import Config
from trainer.devices import put_batch
from trainer.offload.buckets import Bucket
from trainer.offload.choice import num_elements
from trainer.offload.lanes import Lanes, Span
from trainer.offload.make import make_keeper
from trainer.offload.nvme import Nvme
from trainer.offload.offloaded import Offloaded
from trainer.offload.records import Records
from trainer.offload.tiers import Memory
from trainer.offload.update import HostUpdate
from trainer.program import Program
from trainer.step import Due, Metrics

TOKENS, FLOPS, LINK = 8192, 100e12, 25e9
"""Of the stand-in: tokens of a micro-batch, FLOP/s, bytes a second each way."""
ACCUMULATIONS = 1, 4, 16
TIERS = "host", "nvme"
MODELS = {
    "this CPU": (Sizes(layers=8, hidden=512, ffn=2048, sequence=8), "float32"),
    "stand-in": (Sizes(layers=8, hidden=1024, ffn=4096, sequence=32), "bfloat16"),
}
"""And what they compute in: XLA for CPUs copies a whole parameter of bfloat16 for each bucket that goes up."""
BUCKETS = 64
"""Of a model, about: what fills and drains the lanes is then little of a step, as it is of a large model's."""
DRAWN = "stand-in", "nvme", 4
GOAL = 1.15
LANES = "down", "update", "up", "disk"


@dataclass(frozen=True)
class Round:
    """Seconds."""

    step: float
    compute: float
    alone: dict[str, float]
    """By lane, without the others."""

    @property
    def rest(self) -> float:
        return self.step - self.compute

    @property
    def slowest(self) -> float:
        return max(self.alone.values())


class Case:
    """A keeper whose steps are timed."""

    def __init__(self, device: str, tier: str, accumulation: int, folder: Path) -> None:
        self.name = device, tier, accumulation
        self.lanes = Lanes()
        everywhere = set(os.sched_getaffinity(0))
        # XLA's threads stay on the core that they begin on, and those of the host begin anew in each step.
        xla_cores = {min(everywhere)} if device == "this CPU" else everywhere
        self.host_cores = everywhere - xla_cores or everywhere
        sizes, compute = MODELS[device]
        sizes = dataclasses.replace(sizes, batch=accumulation)
        with on_cores(xla_cores):
            self.keeper = make(sizes, compute, tier, folder, self.lanes)
            self.program = self.keeper.program
            rows = sizes.rows()._asdict()
            self.batch = put_batch(self.program.mesh, self.program.batch_specs, accumulation, lambda low, high: rows)
        self.keeper.update = HostUpdate(self.program.config.optimizer, len(self.host_cores))
        self.gradients = {
            name: jax.device_put(jnp.zeros(layout.stored_shape), self.keeper.exchange.shardings[name])
            for name, layout in self.program.layouts.items()
        }
        self.flat_gradients = {
            name: self.keeper.exchange.shards(name, gradient)[0] for name, gradient in self.gradients.items()
        }
        if device == "stand-in":
            sleep_instead(self.keeper, self.gradients, accumulation)
        self.records = in_memory(self.keeper)
        self.step()  # compiles

    def round(self) -> Round:
        first = len(self.lanes.spans)
        step = self.step()
        compute = sum(span.end - span.start for span in self.lanes.spans[first:] if span.lane == "compute")
        with on_cores(self.host_cores):
            alone = {"update": timed(self._updates), "down": timed(self._down), "up": timed(self._up)}
            tier = self.keeper.records.tier
            if isinstance(tier, Nvme):
                alone["disk"] = timed(lambda: list(tier.sweep(range(len(tier.sizes)))))
        return Round(step, compute, alone)

    def step(self) -> float:
        with on_cores(self.host_cores):
            return timed(partial(self.keeper.step, self.batch))

    def close(self) -> None:
        self.keeper.records.tier.close()
        self.records.tier.close()

    @property
    def _buckets(self) -> Sequence[Bucket]:
        return self.keeper.records.buckets

    def _updates(self) -> None:
        weights = np.zeros(max(bucket.size for bucket in self._buckets), self.keeper.to_host.dtype)
        for bucket, _, (master, *moments) in self.records.visit():
            self.keeper.update(
                master,
                moments,
                self.flat_gradients[bucket.name][bucket.start :][: bucket.size],
                weights[: bucket.size],
                decays=True,
                count=9,
                rate=np.float32(0),
                factor=np.float32(1),
            )

    def _down(self) -> None:
        for bucket in self._buckets:
            self.keeper.exchange.down(self.gradients[bucket.name], bucket)

    def _up(self) -> None:
        weights = dict(self.keeper.state.parameters)
        for bucket in self._buckets:
            self.keeper.to_devices.send(weights, bucket, self.keeper.to_devices.open(bucket))
        self.keeper.state = self.keeper.state._replace(parameters=weights)


def make(sizes: Sizes, compute: str, tier: str, folder: Path, lanes: Lanes) -> Offloaded:
    """On one device, with micro-batches of one sequence."""
    plain = sizes.config(precision={"compute": compute})
    offload = {"optimizer": tier, "bucket": sum(num_elements(plain.model).values()) // BUCKETS}
    if tier == "nvme":
        offload |= {"path": str(folder)}
    config = Config.from_dict(plain.to_dict(), {"batch.micro": 1, "offload": offload})
    keeper = make_keeper(Program(config, make_mesh(config.mesh, jax.devices()[:1])), lambda note: None, lanes)
    assert isinstance(keeper, Offloaded)
    keeper.initialise()
    return keeper


def in_memory(keeper: Offloaded) -> Records:
    """Its records, or twins of those that are on a disk: to be updated without it."""
    records = keeper.records
    if not isinstance(records.tier, Nvme):
        return records
    return Records(records.buckets, records.num_groups, records.num_rows, Memory)


def sleep_instead(keeper: Offloaded, gradients: dict[str, jax.Array], accumulation: int) -> None:
    """The device and its link: no computation and no copy is done, and each takes as long as it would."""
    program, exchange = keeper.program, keeper.exchange
    num_parameters = sum(gradient.size for gradient in gradients.values())
    due = Due(gradients, np.float32(1), np.bool_(True), np.int32(9))  # type: ignore[arg-type]
    metrics = Metrics(*np.zeros(len(Metrics._fields), np.float32))
    down = exchange.down

    def step(state: Any, batch: Any) -> Any:
        time.sleep(6 * num_parameters * TOKENS * accumulation / FLOPS)
        return state, metrics, due

    def slow_down(array: jax.Array, bucket: Bucket) -> list[np.ndarray]:
        time.sleep(bucket.size * array.dtype.itemsize / LINK)
        return down(array, bucket)

    def slow_up(array: jax.Array, bucket: Bucket, parts: Sequence[np.ndarray]) -> jax.Array:
        time.sleep(sum(part.nbytes for part in parts) / LINK)
        return array

    program.step = step  # type: ignore[assignment]
    exchange.down, exchange.up = slow_down, slow_up  # type: ignore[method-assign]


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """This thread, and those that it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row(case: Case, rounds: Sequence[Round]) -> list[str]:
    def median(number: Callable[[Round], float]) -> float:
        return statistics.median(map(number, rounds))

    alone = {lane: [r.alone[lane] for r in rounds] for lane in rounds[0].alone}
    lanes = [f"{statistics.median(alone[lane]):.3f}" if lane in alone else "-" for lane in LANES]
    best = min(r.rest for r in rounds) / max(map(min, alone.values()))
    return [
        *map(str, case.name),
        f"{median(lambda r: r.step):.3f}",
        f"{median(lambda r: r.compute):.3f}",
        *lanes,
        f"{median(lambda r: r.step / max(r.compute, r.slowest)):.2f}",
        f"{median(lambda r: r.rest / r.slowest):.2f}",
        f"{best:.2f}",
        f"{median(lambda r: r.rest / r.step):.0%}",
    ]


def main(folder: Path, rounds: int, lanes: Path | None) -> None:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for device, tier, accumulation in itertools.product(MODELS, TIERS, ACCUMULATIONS):
            case = Case(device, tier, accumulation, Path(place))
            rows.append(row(case, [case.round() for _ in range(rounds)]))
            if lanes is not None and case.name == DRAWN:
                write(case, lanes)
            case.close()
            print(*rows[-1], file=sys.stderr, flush=True)
    ratios = "step / slowest", "rest / slowest", "best", "exposed"
    show(
        f"Seconds, {rounds} rounds; rest / slowest is to be at most {GOAL}",
        ["device", "optimizer", "accumulation", "step", "compute", *LANES, *ratios],
        rows,
    )


def write(case: Case, path: Path) -> None:
    """Two more steps' spans: lane, label, and start and end in seconds."""
    del case.lanes.spans[:]
    case.step()
    case.step()
    start = min(span.start for span in case.lanes.spans)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Span._fields)
        for lane, label, begin, end in case.lanes.spans:
            writer.writerow([lane, label, f"{begin - start:.5f}", f"{end - start:.5f}"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lanes", metavar="FILE.csv", type=Path)
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    main(arguments.folder, arguments.rounds, arguments.lanes)
