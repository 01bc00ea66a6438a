"""530 billion parameters on 2,240 H100s that are not there: the step of configs/mt-nlg-530b.yaml, compiled for them.

    python -m benchmarks.pipeline_compile [OVERRIDE...]    without overrides, a table of what a stage may keep

Pipeline 35 x data 8 x tensor 8, 240 micro-batches. Prints seconds, the bytes that XLA sets aside on each GPU, how often
a tick moves a whole array of the ring, and what is scheduled while activations and cotangents travel. Exits with 1
where a step takes more than two minutes. Needs no GPU: XLA compiles for a described one, with what
`pip install -e '.[plan]'` adds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks.common import show
from benchmarks.pipeline_program import TRAVELLERS, Transit, moved_each_tick, ring, transits
from trainer.config import Config
from trainer.pipeline import make_schedule
from trainer.planner.compiled import compile_step
from trainer.planner.gpu import load
from trainer.units import GIB

Options = dict[str, Any]
"""Compiler options of XLA."""
CONFIG = Path(__file__).parents[1] / "configs" / "mt-nlg-530b.yaml"
# XLA's default is one collective at a time, those inside of a unit included, so that none travels while a unit of a
# tensor-parallel stage is at work; and it moves an activation's journey to the beginning of the tick that waits for it.
OVERLAPPING: Options = {
    "xla_gpu_experimental_parallel_collective_overlap_limit": 4,
    "xla_disable_hlo_passes": "collective-permute-motion",
}
OPTIONS: dict[str, Options] = {"XLA's own": {}, "overlapping": OVERLAPPING}
CHOICES = [
    (["recompute=full"], "XLA's own"),
    (["recompute=full"], "overlapping"),
    (["recompute=full", "pipeline.head=last"], "XLA's own"),
    (["recompute=full", "pipeline.head=last"], "overlapping"),
    (["recompute=none", "pipeline.keep=inputs"], "XLA's own"),
    (["recompute=none", "pipeline.keep=inputs", "pipeline.head=last"], "XLA's own"),
    (["recompute=selective"], "XLA's own"),
]
REFERENCE = "attention.implementation=reference"
ALLOWED_SECONDS = 120


@dataclass(frozen=True)
class Compiled:
    """Of one config; bytes are those of one GPU."""

    config: Config
    options: str
    """By their name in OPTIONS."""
    seconds: dict[str, float]
    arguments: int
    temporary: int
    ring: int
    moved: int
    """Instructions that move a whole array of the ring in each tick."""
    transits: list[Transit]


def compile_config(config: Config, options: str) -> Compiled:
    """The step of a config, compiled for as many absent GPUs as it asks for."""
    step = compile_step(config, load("h100"), options=OPTIONS[options])
    slots = ring(step.trace.program, make_schedule(config, config.mesh.sizes).num_slots)
    text = step.compiled.as_text() or ""
    return Compiled(
        config,
        options,
        step.seconds,
        arguments=step.state,
        temporary=step.temporary,
        ring=sum(array.size * array.dtype.itemsize for array in slots),
        moved=moved_each_tick(text, slots),
        transits=transits(text),
    )


def _choice(compiled: Compiled) -> list[str]:
    config = compiled.config
    return [config.pipeline.keep, config.recompute.policy, config.pipeline.head, compiled.options]


def _cost(compiled: Compiled) -> list[str]:
    seconds = [f"{seconds:.1f}" for seconds in compiled.seconds.values()]
    sizes = compiled.arguments, compiled.temporary, compiled.arguments + compiled.temporary, compiled.ring
    return [*_choice(compiled), *seconds, *(f"{size / GIB:.1f}" for size in sizes), str(compiled.moved)]


def _overlap(compiled: Compiled) -> list[str]:
    """Of the steady ticks, which are most."""
    steady = {transit.what: transit for transit in compiled.transits if transit.phase == "steady"}
    found = [steady.get(what) for what in TRAVELLERS]
    return [*_choice(compiled), *(f"{transit.units} and {transit.fusions}" if transit else "-" for transit in found)]


def main(overrides: list[str]) -> int:
    """Prints the tables; how many steps took too long to compile."""
    jax.config.update("jax_platforms", "cpu")
    choices = [(overrides, options) for options in OPTIONS] if overrides else CHOICES
    found = [compile_config(Config.load(CONFIG, [REFERENCE, *choice]), options) for choice, options in choices]
    config, columns = found[0].config, ["keep", "recompute", "head", "options"]
    show(
        f"{CONFIG.stem} for {config.mesh.num_devices:,} H100s: seconds, and GiB on each",
        [*columns, *found[0].seconds, "state", "temporary", "in all", "ring", "moved"],
        [_cost(compiled) for compiled in found],
    )
    show(
        "Units and fusions while it travels, in a steady tick",
        [*columns, *TRAVELLERS],
        [_overlap(compiled) for compiled in found],
    )
    print("overlapping:", *(f"{name}={value}" for name, value in OVERLAPPING.items()))
    late = sum(sum(compiled.seconds.values()) > ALLOWED_SECONDS for compiled in found)
    print(f"{late} took more than {ALLOWED_SECONDS} seconds." if late else f"All within {ALLOWED_SECONDS} seconds.")
    return late


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
