"""What the `pipeline` section of a config makes on a mesh: the split of the layers, the schedule, and who runs it.

Plain arithmetic: no devices. Knows configs and `sharding.pipeline`, not the model or the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sharding import tensor
from sharding.layout import RULES
from sharding.mesh import PIPELINE, num_groups
from sharding.pipeline import makers, schedule_file
from sharding.pipeline.executor import Pipeline
from sharding.pipeline.schedule import Schedule
from sharding.pipeline.stages import Stages, split_layers
from trainer.paths import local

if TYPE_CHECKING:
    from trainer.config import Config

MOST_UNITS = 1_000_000
"""Of a stage in a step: beyond, the table itself would take minutes to make."""
MOST_STAGES = 100_000
MOST_PLACES = 20_000_000
"""Of all stages, at all ticks: beyond, the table would take gigabytes."""
MOST_WAITING = 0.5
"""The bubble from which on a user is told of it."""
TABLE = ".csv"
"""How the name of a schedule ends that is a file."""


def make_pipeline(config: Config, mesh: Mapping[str, int]) -> Pipeline | None:
    """What runs the layers of several stages, on a mesh with these axis sizes; None where one device holds them all.

    Raises:
        ValueError: the layers, or the micro-batches, cannot be placed on the stages.
    """
    if mesh[PIPELINE] == 1:
        return None
    return Pipeline(make_schedule(config, mesh), make_stages(config, mesh), config.pipeline.keep, config.pipeline.head)


def make_schedule(config: Config, mesh: Mapping[str, int]) -> Schedule:
    """The schedule by name or from a file, for as many micro-batches as the batch has on this mesh."""
    name, stages, chunks = config.pipeline.schedule, mesh[PIPELINE], config.pipeline.virtual_stages
    micro_batches = config.batch.accumulation(num_groups(mesh))
    if micro_batches * chunks > MOST_UNITS:
        raise ValueError(
            f"batch.global={config.batch.global_} makes {micro_batches:,} micro-batches, more than a schedule is made "
            "for; use a larger batch.micro"
        )
    if 2 * (micro_batches * chunks + stages) * stages > MOST_PLACES:
        raise ValueError(
            f"mesh.pipeline={stages:,} and {micro_batches:,} micro-batches make a larger schedule than is made; "
            "use fewer stages, or a larger batch.micro"
        )
    return find_schedule(name, stages, chunks, micro_batches)


def find_schedule(name: str, stages: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule by name or from a file, for these numbers.

    Raises:
        ValueError: there is none of this name, or it is not for these numbers.
    """
    if is_table(name):
        return schedule_file.read(Path(local(name)), stages, chunks, micro_batches)
    return makers.make(name, stages, chunks, micro_batches)


def is_table(name: str) -> bool:
    """Whether a schedule of this name is a file."""
    return Path(name).suffix.lower() == TABLE


def advice(config: Config, schedule: Schedule) -> str | None:
    """What to say of a schedule that waits longer than half of the time it works; None of others."""
    bubble = schedule.bubble()
    if bubble <= MOST_WAITING:
        return None
    stages, chunks, micro_batches = schedule.num_stages, schedule.num_chunks, schedule.num_micro_batches
    waits = (
        f"with {micro_batches} micro-batch{'es' * (micro_batches > 1)} on {stages} stages, stages wait {bubble:.0%} of "
        "the time that they work"
    )
    if is_table(config.pipeline.schedule):
        other = makers.interleaved_1f1b(stages, chunks, micro_batches).bubble()
        return f"{waits}, as {config.pipeline.schedule} has it; interleaved_1f1b would wait {other:.0%}"
    smaller = "a larger batch.global" if config.batch.micro == 1 else "a smaller batch.micro or a larger batch.global"
    return (
        f"{waits}; {smaller} makes more micro-batches, and {4 * stages} of them would wait "
        f"{(stages - 1) / (4 * stages * chunks):.0%}"
    )


def make_stages(config: Config, mesh: Mapping[str, int]) -> Stages:
    """The layers of each stage; all of them on the only one, if there are no more."""
    if mesh[PIPELINE] == 1:
        return Stages(1, (config.model.layers,))
    pipeline = config.pipeline
    if mesh[PIPELINE] * pipeline.virtual_stages > MOST_STAGES:
        raise ValueError(
            f"mesh.pipeline={mesh[PIPELINE]} x pipeline.virtual_stages={pipeline.virtual_stages} are more than "
            f"{MOST_STAGES:,} stages; use fewer"
        )
    return split_layers(config.model.layers, mesh[PIPELINE], pipeline.virtual_stages, pipeline.layers)


def vocab_axes(config: Config) -> tuple[str, ...]:
    """The mesh axes that embedding and head are cut over, by vocabulary."""
    return RULES["vocab"] if config.pipeline.head == "spread" else (tensor.AXIS,)
