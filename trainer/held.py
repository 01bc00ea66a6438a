"""What each device really holds at rest: measured from its arrays, not computed from a plan."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from trainer.trainer import Trainer


_TITLE = "What each device holds at rest (float32)"
_MOST_ROWS = 16


def held_bytes(tree: object) -> Counter[jax.Device]:
    """Bytes per local device of all arrays in `tree`."""
    count: Counter[jax.Device] = Counter()
    for array in jax.tree.leaves(tree):
        for shard in array.addressable_shards:
            count[shard.device] += shard.data.nbytes
    return count


def held(trainer: Trainer, console: Console | None = None) -> None:
    """Prints the bytes of master weights and moments that devices hold.

    A row a device, with its place on the mesh; of many devices, a row for those that hold the same.
    """
    state, mesh = trainer.restored_state, trainer.program.mesh
    weights, moments = held_bytes(state.parameters), held_bytes(state.optimizer)
    sizes = {device: (_megabytes(weights[device]), _megabytes(moments[device])) for device in weights}
    console = console or Console()
    console.print(_grouped(sizes) if len(sizes) > _MOST_ROWS else _one_by_one(sizes, mesh))
    console.print(f"The run's files are in {trainer.folder}/", markup=False, highlight=False, soft_wrap=True)


def _one_by_one(sizes: Mapping[jax.Device, tuple[str, str]], mesh: Mesh) -> Table:
    axes = [axis for axis, size in mesh.shape.items() if size > 1]
    table = Table("device", *axes, "weights", "moments", title=_TITLE)
    places = itertools.product(*(range(mesh.shape[axis]) for axis in axes))
    for place, device in zip(places, mesh.devices.flat, strict=True):
        if device in sizes:
            table.add_row(str(device.id), *map(str, place), *sizes[device])
    return table


def _grouped(sizes: Mapping[jax.Device, tuple[str, str]]) -> Table:
    table = Table("devices", "weights", "moments", title=_TITLE)
    for size, count in Counter(sizes.values()).items():
        table.add_row(f"{count:,}", *size)
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
