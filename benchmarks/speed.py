"""CPU seconds per training step of a small decoder, beside loops written by hand.

    python -m benchmarks.speed [--rounds 10]

4 layers, hidden 256, 4 heads, SwiGLU 1024, vocabulary 8192, 8 sequences of 256 tokens, float32, AdamW. CPU time of the
whole process per step, which does not mind what else the machine does; the ratio is to the bare JAX loop with flattened
tokens, the median over rounds that give each variant its turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Mapping
from typing import Any

import jax

from benchmarks.bare_jax import BareLoop, flattened, naive
from benchmarks.common import Sizes, Step, Times, measure, ratio, show
from sharding.mesh import make_mesh
from trainer.devices import put_batch
from trainer.program import Program

DEVICES = 4
YARDSTICK = "bare JAX loop, tokens flattened"

# Variant -> (config sections, the ratio to the yardstick that it is to stay below).
OURS: dict[str, tuple[Mapping[str, Any], float]] = {
    "meshwright, 1 device": ({}, 0.99),
    "meshwright, 1 device, unrolled": ({"model": {"scan_layers": False}}, 0.87),
    "meshwright, 4 devices, ZeRO-3": ({"mesh": {"data": DEVICES}, "zero": {"stage": 3}}, 1.05),
    "meshwright, 4 devices, tensor": ({"mesh": {"tensor": DEVICES}}, 1.05),
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


def variants(sizes: Sizes) -> dict[str, Step]:
    """Name -> a training step, ours first."""
    found: dict[str, Step] = {name: OurStep(sizes, sections) for name, (sections, _) in OURS.items()}
    found["bare JAX loop, x @ w"] = BareLoop(sizes, naive, scan=True)
    found[YARDSTICK] = BareLoop(sizes, flattened, scan=True)
    found["bare JAX loop, flattened, unrolled"] = BareLoop(sizes, flattened, scan=False)
    if importlib.util.find_spec("torch"):
        from benchmarks.bare_torch import TorchLoop

        found["PyTorch, eager"] = TorchLoop(sizes)
    return found


def row(name: str, times: Times, yardstick: Times) -> list[str]:
    goal = f"{OURS[name][1]:.2f}" if name in OURS else ""
    seconds = [f"{value:.3f}" for value in (min(times.cpu), statistics.median(times.cpu))]
    return [name, *seconds, f"{ratio(times.cpu, yardstick.cpu):.3f}", goal]


def main(sizes: Sizes = Sizes(), rounds: int = 10, steps: int = 2) -> None:
    if len(jax.devices()) < DEVICES:
        raise SystemExit(f"needs {DEVICES} devices: JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={DEVICES}")
    found = measure(variants(sizes), rounds, steps)
    rows = [row(name, times, found[YARDSTICK]) for name, times in found.items()]
    show(f"CPU seconds per step, {rounds} rounds of {steps}", ["", "least", "median", "ratio", "at most"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    main(rounds=parser.parse_args().rounds)
