"""What each device really holds at rest: measured from its arrays, not computed from a plan."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import jax
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from trainer.trainer import Trainer


def held_bytes(tree: object) -> Counter[jax.Device]:
    """Bytes per local device of all arrays in `tree`."""
    count: Counter[jax.Device] = Counter()
    for array in jax.tree.leaves(tree):
        for shard in array.addressable_shards:
            count[shard.device] += shard.data.nbytes
    return count


def held(trainer: Trainer, console: Console | None = None) -> None:
    """Prints one row a device: its place on the mesh, and the bytes of master weights and moments it holds."""
    state, mesh = trainer.restored_state, trainer.program.mesh
    weights, moments = held_bytes(state.parameters), held_bytes(state.optimizer)
    axes = [axis for axis, size in mesh.shape.items() if size > 1]
    table = Table("device", *axes, "weights", "moments", title="What each device holds at rest (float32)")
    for place, device in zip(_places(dict(mesh.shape)), mesh.devices.flat, strict=True):
        if device in weights:
            row = [str(place[axis]) for axis in axes]
            table.add_row(str(device.id), *row, f"{weights[device] / 1e6:.2f} MB", f"{moments[device] / 1e6:.2f} MB")
    console = console or Console()
    console.print(table)
    console.print(f"The run's files are in {trainer.folder}/", highlight=False)


def _places(shape: dict[str, int]) -> list[dict[str, int]]:
    places: list[dict[str, int]] = [{}]
    for axis, size in shape.items():
        places = [{**place, axis: index} for place in places for index in range(size)]
    return places
