"""What each device really holds at rest, and this process for them: measured from arrays, not computed from a plan."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from sharding.streamed import HOST
from trainer.keeper import Keeper
from trainer.offload.nvme import Nvme
from trainer.offload.offloaded import Offloaded
from trainer.streams import make_console

if TYPE_CHECKING:
    from trainer.trainer import Trainer


_TITLE = "What each device holds at rest"
_MOST_ROWS = 16


def held_bytes(tree: object, on_host: bool = False) -> Counter[jax.Device]:
    """Bytes per local device of all arrays in `tree` that are in its memory or, if asked, in its host's."""
    count: Counter[jax.Device] = Counter()
    for array in jax.tree.leaves(tree):
        for shard in array.addressable_shards:
            is_asked_for = (array.sharding.memory_kind == HOST) == on_host
            count[shard.device] += shard.data.nbytes if is_asked_for else 0
    return count


def held(trainer: Trainer, console: Console | None = None) -> None:
    """Prints the bytes of weights and moments that devices hold, and what is offloaded.

    A row a device, with its place on the mesh; of many devices, a row for those that hold the same.
    """
    state, mesh = trainer.restored_state, trainer.program.mesh
    weights, moments = held_bytes(state.parameters), held_bytes(state.optimizer)
    sizes = {device: (_megabytes(weights[device]), _megabytes(moments[device])) for device in weights}
    console = console or make_console()
    title = f"{_TITLE} ({', '.join(sorted({str(array.dtype) for array in state.parameters.values()}))})"
    table = _grouped(sizes, title) if len(sizes) > _MOST_ROWS else _one_by_one(sizes, mesh, title)
    console.print(table)
    for line in _offloaded(trainer.keeper):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"The run's files are in {trainer.folder}/", markup=False, highlight=False, soft_wrap=True)


def _offloaded(keeper: Keeper) -> Iterator[str]:
    """What this process has in host memory and in files, for all its devices."""
    if not isinstance(keeper, Offloaded):
        return
    tier, weights = keeper.records.tier, held_bytes(keeper.state.parameters, on_host=True).total()
    state = "of master weights and moments (float32)"
    if isinstance(tier, Nvme):
        yield f"on NVMe, for all devices here: {_megabytes(tier.file_bytes)} {state}"
        yield f"in host memory: {_megabytes(tier.host_bytes)} of buffers for these"
    else:
        yield f"in host memory, for all devices here: {_megabytes(tier.host_bytes)} {state}"
    if keeper.layers is not None:
        size = keeper.layers.bytes
        yield f"on NVMe: {_megabytes(size.weights)} of layers' weights, {_megabytes(size.gradients)} of their gradients"
        yield f"in host memory: {_megabytes(size.buffers)} of buffers for these"
    if weights:
        yield f"in host memory that devices read: {_megabytes(weights)} of layers' weights"


def _one_by_one(sizes: Mapping[jax.Device, tuple[str, str]], mesh: Mesh, title: str) -> Table:
    axes = [axis for axis, size in mesh.shape.items() if size > 1]
    table = Table("device", *axes, "weights", "moments", title=title)
    places = itertools.product(*(range(mesh.shape[axis]) for axis in axes))
    for place, device in zip(places, mesh.devices.flat, strict=True):
        if device in sizes:
            table.add_row(str(device.id), *map(str, place), *sizes[device])
    return table


def _grouped(sizes: Mapping[jax.Device, tuple[str, str]], title: str) -> Table:
    table = Table("devices", "weights", "moments", title=title)
    for size, count in Counter(sizes.values()).items():
        table.add_row(f"{count:,}", *size)
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
