"""The schedule of a config's pipeline, drawn: who works when, what it keeps meanwhile, and how much time is lost.

Arithmetic alone: it starts no device. Knows neither how a schedule is drawn nor how it is executed.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from sharding.pipeline.stages import Stages
from trainer import timeline
from trainer.config import Config
from trainer.description import resolve
from trainer.errors import ConfigError
from trainer.pipeline import make_schedule, make_stages
from trainer.tables import wide_console


def show_schedule(config: Config, out: Path | None = None) -> None:
    """Prints the timeline, and writes it to `out` (`trainer.timeline.save`), where that is given.

    A mesh axis of -1 takes `mesh.virtual_devices`, or is taken as 1.

    Raises:
        ConfigError: there is one stage, or the config does not fit its mesh, or `out` ends in no known way.
    """
    config, assumed = resolve(config)
    mesh = config.mesh.sizes
    if mesh["pipeline"] == 1:
        why = "takes what is left, which is not known here" if assumed and "mesh.pipeline" in assumed else "is 1"
        raise ConfigError(
            f"mesh.pipeline {why}, so there is no schedule; set it to a number of stages: mesh.pipeline=4"
        )
    schedule = make_schedule(config, mesh)
    if out is not None:
        timeline.save(schedule, out)
    console = wide_console()
    timeline.draw(schedule, console)
    console.print(f"{'layers':<10} {_layers(make_stages(config, mesh))}", highlight=False)
    for note in filter(None, [assumed, out and f"written to {out}"]):
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _layers(stages: Stages) -> str:
    """Equal neighbours are told together, such as 5, 6 x10, 5."""
    runs = ((layers, len(list(equal))) for layers, equal in groupby(stages.num_layers))
    numbers = ", ".join(f"{layers} x{count}" if count > 1 else f"{layers}" for layers, count in runs)
    return f"{numbers} ({'virtual ' * (stages.num_chunks > 1)}stages in the order of the model)"
