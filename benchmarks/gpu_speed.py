"""How fast attention is on one GPU, by each implementation: what `meshwright bench kernels` shows."""

from __future__ import annotations

import jax

from trainer.bench.shapes import SHAPES, Shape
from trainer.bench.speed import OUT_OF_MEMORY, attention_speeds, speed_table
from trainer.planner.gpu import described
from trainer.tables import wide_console

LEAST = 0.1
"""Seconds of a round: half of what `meshwright bench kernels` takes."""
TINY = [Shape(batch=1, sequence=64, heads=1, head_dim=16)]
MAY_NOT_FIT = "reference"
"""Its scores take heads x sequence² of memory."""


def check(device: jax.Device, dry: bool) -> list[str]:
    """Prints the speeds; returns what did not run, a line each."""
    shapes, least = (TINY, 0.0) if dry else (SHAPES, LEAST)
    speeds = []
    for speed in attention_speeds(device, shapes, least):
        print(speed, flush=True)  # so that what is measured is kept, whatever comes next
        speeds.append(speed)
    wide_console().print(speed_table(speeds, described(device.device_kind)))
    return [
        f"{speed.implementation}, {speed.shape}: {speed.problem}"
        for speed in speeds
        if speed.problem and (speed.implementation, speed.problem) != (MAY_NOT_FIT, OUT_OF_MEMORY)
    ]
