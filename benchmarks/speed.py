"""CPU seconds per training step of a small decoder, beside loops written by hand.

    python -m benchmarks.speed [--rounds 10]

4 layers, hidden 256, 4 heads, SwiGLU 1024, vocabulary 8192, 8 sequences of 256 tokens, float32, AdamW. Each variant has
a process of its own, as a training run has; what counts is its CPU time per step, which minds little what else the
machine does. The ratio is to the bare JAX loop with flattened tokens, the median over rounds that give each its turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

from benchmarks.bare_jax import BareLoop, flattened, naive
from benchmarks.common import Sizes, Step, Times, ratio, show
from sharding.mesh import make_mesh
from trainer.devices import put_batch
from trainer.huge_pages import restart_with_huge_pages
from trainer.program import Program

DEVICES = 4
YARDSTICK = "bare JAX loop, tokens flattened"

# Variant -> (config sections, the CPU seconds that a step is to stay below on a 2-core machine of 2026).
OURS: dict[str, tuple[Mapping[str, Any], float]] = {
    "meshwright, 1 device": ({}, 1.45),
    "meshwright, 1 device, unrolled": ({"model": {"scan_layers": False}}, 1.28),
    "meshwright, 4 devices, ZeRO-3": ({"mesh": {"data": DEVICES}, "zero": {"stage": 3}}, 1.55),
    "meshwright, 4 devices, tensor": ({"mesh": {"tensor": DEVICES}}, 1.55),
}


class OurStep:
    """Calling it trains one step of the program that `Trainer` runs, and gives its metrics."""

    def __init__(self, sizes: Sizes, sections: Mapping[str, Any]) -> None:
        config = sizes.config(**sections)
        self.program = Program(config, make_mesh(config.mesh, jax.devices()[: config.mesh.num_devices]))
        self.state = self.program.init()
        rows = sizes.rows()._asdict()
        self.batch = put_batch(
            self.program.mesh,
            self.program.batch_specs,
            sizes.batch,
            lambda low, high: {name: x[low:high] for name, x in rows.items()},
        )

    def __call__(self) -> object:
        self.state, metrics = self.program.step(self.state, self.batch)
        return metrics


def variants(sizes: Sizes) -> dict[str, Callable[[], Step]]:
    """Name -> what makes its training step, ours first."""
    found: dict[str, Callable[[], Step]] = {
        name: partial(OurStep, sizes, sections) for name, (sections, _) in OURS.items()
    }
    found["bare JAX loop, x @ w"] = partial(BareLoop, sizes, naive, scan=True)
    found[YARDSTICK] = partial(BareLoop, sizes, flattened, scan=True)
    found["bare JAX loop, flattened, unrolled"] = partial(BareLoop, sizes, flattened, scan=False)
    if importlib.util.find_spec("torch"):
        from benchmarks.bare_torch import TorchLoop

        found["PyTorch, eager"] = partial(TorchLoop, sizes)
    return found


class Worker:
    """A variant in a process of its own."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.speed", "--variant", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.train(1)  # compiles; the next begins when this is done

    def train(self, steps: int) -> tuple[float, float]:
        """CPU and wall seconds per step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        cpu, wall = self.process.stdout.readline().split()
        return float(cpu), float(wall)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def work(name: str) -> None:
    """What a worker does: for every number it reads, trains that many steps and writes what one took."""
    step = variants(Sizes())[name]()
    for line in sys.stdin:
        times = Times()
        with times.measured(int(line)):
            jax.block_until_ready([step() for _ in range(int(line))])
        print(times.cpu[0], times.wall[0], flush=True)


def row(name: str, times: Times, yardstick: Times) -> list[str]:
    goal = f"{OURS[name][1]:.2f}" if name in OURS else ""
    seconds = [f"{value:.3f}" for value in (min(times.cpu), statistics.median(times.cpu))]
    return [name, *seconds, goal, f"{ratio(times.cpu, yardstick.cpu):.3f}"]


def main(rounds: int, steps: int = 2) -> None:
    workers = {name: Worker(name) for name in variants(Sizes())}
    found = {name: Times() for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            cpu, wall = worker.train(steps)
            found[name].cpu.append(cpu)
            found[name].wall.append(wall)
    for worker in workers.values():
        worker.close()
    rows = [row(name, times, found[YARDSTICK]) for name, times in found.items()]
    show(f"CPU seconds per step, {rounds} rounds of {steps}", ["", "least", "median", "goal", "ratio"], rows)


if __name__ == "__main__":
    restart_with_huge_pages()  # as `meshwright train` does, for us and for the loops by hand
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    if arguments.variant:
        work(arguments.variant)
    else:
        main(arguments.rounds)
