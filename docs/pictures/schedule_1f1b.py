"""The timeline of 1f1b."""

from __future__ import annotations

from sharding.pipeline.makers import make
from trainer.picture import Picture
from trainer.timeline import picture


def draw() -> Picture:
    return picture(make("1f1b", stages=3, chunks=1, micro_batches=9))
