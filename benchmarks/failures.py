"""What it costs to look after a run: steps with the watchdog, the spike guard and the comparison of replicas, against
steps without.

    python -m benchmarks.failures [--rounds 8] > benchmarks/results/failures-DATE.txt

Each variant trains the same model in turn, with a line every tenth step. It is a small one: what a step costs besides
is the same for a large one, and counts for less. Ratios of the time of a step, the variant's over that of the first of
its group: the median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import statistics
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks.common import Sizes, Times, ratio, show
from trainer import loop
from trainer.step import Metrics
from trainer.trainer import Trainer

ROOT = Path(__file__).parents[1]
SIZES = Sizes(layers=2, hidden=128, ffn=512, vocab=2048, sequence=128, batch=4)
STEPS = 10
"""Of a turn, that are timed, between two lines; as many before and after are not."""
OFF = {"watchdog": {"seconds": None}}
GUARDED = {"failures": {"on_spike": "stop", "spike_loss": 100.0, "spike_grad_norm": 100.0, "window": 20}}


@dataclass(frozen=True)
class Variant:
    name: str
    settings: dict[str, Any]
    devices: int = 1
    ahead: int = loop.AHEAD


VARIANTS = [
    [
        Variant("neither", OFF),
        Variant("neither, the host as far ahead as it gets", OFF, ahead=10**9),
        Variant("watchdog", {}),
        Variant("watchdog, spike guard", GUARDED),
    ],
    [
        Variant("2 devices, ZeRO 0", OFF, 2),
        Variant("replicas compared every 10 steps", OFF | {"check": {"replicas_every": 10}}, 2),
        Variant("replicas compared every step", OFF | {"check": {"replicas_every": 1}}, 2),
    ],
]


class Timed(Trainer):
    """Times the second third of each call of `train`."""

    times: Times

    def steps(self, num: int | None = None) -> Generator[Metrics, None, None]:
        with contextlib.closing(super().steps(num)) as steps:
            yield from itertools.islice(steps, STEPS)
            with self.times.measured(STEPS):  # ends as the loop asks for more: it has logged, and so waited
                yield from itertools.islice(steps, STEPS)
            yield from steps


def trainer_of(variant: Variant, folder: str, rounds: int) -> Timed:
    config = SIZES.config(
        mesh={"data": variant.devices},
        zero={"stage": 0},
        data={"path": f"{ROOT}/trainer/**/*.py", "cache": f"{folder}/data"},
        train={"steps": 3 * STEPS * (rounds + 1), "log_every": STEPS},
        run={"dir": f"{folder}/{variant.name}", "compile_cache": None, "tensorboard": False},
        **variant.settings,
    )
    return Timed(config, jax.devices()[: variant.devices])


def measure(group: list[Variant], rounds: int) -> list[Times]:
    """Of each variant, without its first turn, which compiles."""
    with tempfile.TemporaryDirectory() as folder:
        trainers = [trainer_of(variant, folder, rounds) for variant in group]
        for turn in range(rounds + 1):
            for variant, trainer in zip(group, trainers, strict=True):
                trainer.times = trainer.times if turn > 1 else Times()
                loop.AHEAD = variant.ahead
                with contextlib.redirect_stdout(io.StringIO()):
                    trainer.train(3 * STEPS)
    return [trainer.times for trainer in trainers]


def main(rounds: int) -> None:
    rows = []
    for group in VARIANTS:
        first, *_ = measured = measure(group, rounds)
        for variant, times in zip(group, measured, strict=True):
            milliseconds = f"{1000 * statistics.median(times.wall):.2f}"
            rows.append(
                [
                    variant.name,
                    milliseconds,
                    f"{ratio(times.wall, first.wall):.3f}",
                    f"{ratio(times.cpu, first.cpu):.3f}",
                ]
            )
    show(f"{rounds} rounds of {STEPS} steps", ["", "ms a step", "wall ratio", "CPU ratio"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    main(parser.parse_args().rounds)
