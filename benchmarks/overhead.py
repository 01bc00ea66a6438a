"""What a training run costs beyond its arithmetic: `Trainer.train` against bare jitted loops, on one CPU device.

    python -m benchmarks.overhead [--rounds 8]

The real run, with its data pipeline, metrics, display, log files and skipping of bad steps, stops after every tenth
step, just logged; then each bare loop runs ten steps of its own. One is written by hand; the other has meshwright's
model, so that what is left is the trainer alone. Ratios of the speed in tokens/s, the trainer's over the loop's, by
wall time and by CPU time: the median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import optax

from benchmarks.bare_jax import BareLoop, flattened
from benchmarks.common import Sizes, Step, Times, ratio, show
from models.decoder import Decoder
from models.inputs import Batch
from sharding.mesh import make_mesh
from trainer.config import Config
from trainer.huge_pages import restart_with_huge_pages
from trainer.program import Program
from trainer.step import Metrics
from trainer.trainer import Trainer

ROOT = Path(__file__).parents[1]
PACKAGES = ("trainer", "models", "sharding")
"""What the run trains on: the sources of these."""
GOAL = 0.97
STEPS = 10
"""A turn's steps, and the trainer's `log_every`."""


class ModelLoop:
    """Calling it trains one step of meshwright's model with optax's AdamW, and gives the loss. No mesh, data or log."""

    def __init__(self, program: Program, sizes: Sizes) -> None:
        model = Decoder(program.config.model)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95, weight_decay=0.1))
        self.params = jax.tree.map(lambda x: jax.device_put(x.copy(), jax.devices()[0]), program.init().parameters)
        self.state = optimizer.init(self.params)
        batch = jax.tree.map(jax.numpy.asarray, sizes.rows())
        self.batch = batch._replace(weights=batch.weights / batch.weights.size)

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(params: Any, state: Any, batch: Batch) -> tuple[Any, Any, jax.Array]:
            value, gradient = jax.value_and_grad(model.loss)(params, lambda _, leaf: leaf, batch, None, None)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        self.step = step

    def __call__(self) -> jax.Array:
        self.params, self.state, value = self.step(self.params, self.state, self.batch)
        return value


class TakesTurns(Trainer):
    """A trainer that has others run `STEPS` steps after as many of its own. The first, which compiles, is not timed."""

    def __init__(self, config: Config, devices: list[jax.Device], others: Mapping[str, Step]) -> None:
        super().__init__(config, devices)
        self.others = others
        self.own = Times()
        self.theirs = {name: Times() for name in others}

    def steps(self, num: int | None = None) -> Iterator[Metrics]:
        with contextlib.closing(super().steps(num)) as steps:
            yield from itertools.islice(steps, STEPS)
            self._give_turns({name: Times() for name in self.others})
            while True:  # until the loop has had its steps, and closes this
                with self.own.measured(STEPS):  # ends as the loop asks for more: it has logged, and so waited
                    yield from itertools.islice(steps, STEPS)
                self._give_turns(self.theirs)

    def _give_turns(self, times: Mapping[str, Times]) -> None:
        for name, step in self.others.items():
            with times[name].measured(STEPS):
                jax.block_until_ready([step() for _ in range(STEPS)])


def main(sizes: Sizes = Sizes(), rounds: int = 8) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = sizes.config(
            data={"path": [f"{ROOT}/{package}/**/*.py" for package in PACKAGES], "cache": f"{folder}/data"},
            train={"steps": (rounds + 2) * STEPS, "log_every": STEPS},  # the first turn compiles, the last one saves
            run={"dir": f"{folder}/run", "compile_cache": None},
        )
        devices = jax.devices()[:1]
        program = Program(config, make_mesh(config.mesh, devices))
        others = {
            "loop written by hand": BareLoop(sizes, flattened, scan=True),
            "loop with meshwright's model": ModelLoop(program, sizes),
        }
        trainer = TakesTurns(config, devices, others)
        trainer.train()
    tokens = sizes.batch * sizes.sequence
    rows = [
        [name, *(f"{tokens / statistics.median(seconds):,.0f}" for seconds in (times.wall, times.cpu))]
        + [f"{ratio(getattr(times, clock), getattr(trainer.own, clock)):.3f}" for clock in ("wall", "cpu")]
        for name, times in {"Trainer.train": trainer.own, **trainer.theirs}.items()
    ]
    title = f"Tokens a second, {rounds} rounds of {STEPS} steps; the ratio is to be at least {GOAL}"
    show(title, ["", "by wall time", "by CPU time", "wall ratio", "CPU ratio"], rows)


if __name__ == "__main__":
    restart_with_huge_pages()  # as `meshwright train` does, for us and for the loops by hand
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    jax.config.update("jax_platforms", "cpu")
    main(rounds=parser.parse_args().rounds)
