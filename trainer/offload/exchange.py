"""Between the arrays that devices hold and the host's memory, a bucket at a time.

Devices of this process that hold the same shard are a group: the host takes the shard from the first of them, and gives
it back to all. Knows nothing of what is done to the shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from sharding.layout import Layout
from sharding.streamed import DEVICE, HOST
from trainer.offload.buckets import Bucket


def groups(sharding: Sharding, shape: Sequence[int]) -> list[list[jax.Device]]:
    """This process' devices, those together that hold the same shard of an array of `shape`."""
    found: dict[tuple[Any, ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(tuple(shape)).items():
        found.setdefault(tuple((part.start, part.stop) for part in index or ()), []).append(device)
    return list(found.values())


class Exchange:
    """For the parameters of these layouts, and for all that lies as they do.

    Args:
        sees_all: the devices' memory is the host's, and can be looked into.
    """

    def __init__(self, mesh: Mesh, layouts: Mapping[str, Layout], sees_all: bool) -> None:
        self.mesh = mesh
        self.layouts = layouts
        self.sees_all = sees_all
        self.shardings = {name: NamedSharding(mesh, layout.spec) for name, layout in layouts.items()}
        self.groups = {name: groups(self.shardings[name], layout.stored_shape) for name, layout in layouts.items()}

    def down(self, array: jax.Array, bucket: Bucket) -> list[np.ndarray]:
        """Each group's part of an array that lies as the parameter does, flat and to be read only, once it is there.

        Where the array is in host memory, the parts are that very memory.
        """
        if not (self._is_whole(bucket) or self.sees_all or array.sharding.memory_kind == HOST):
            program = _take(self.mesh, self.layouts[bucket.name].spec, bucket.rows, bucket.columns, bucket.width)
            array, part = program(array, bucket.row, bucket.column), slice(None)
        else:
            part = slice(bucket.start, bucket.start + bucket.size)
        return [shard[part] for shard in self.shards(bucket.name, array)]

    def shards(self, name: str, array: jax.Array) -> list[np.ndarray]:
        """All of each group's shard, in the same way."""
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        firsts = [shards[devices[0]] for devices in self.groups[name]]
        for shard in firsts:
            shard.copy_to_host_async()
        return [np.asarray(shard).reshape(-1) for shard in firsts]

    def on_host(self, name: str, shards: Sequence[np.ndarray]) -> jax.Array:
        """Undoes `shards`: an array that lies as the parameter does, copied to memory of the host."""
        layout = self.layouts[name]
        return self._array(name, shards, layout.shard_shape, layout.stored_shape, layout.spec, HOST)

    def up(self, array: jax.Array, bucket: Bucket, parts: Sequence[np.ndarray]) -> jax.Array:
        """`array`, which is used up, with each group's part in place of the bucket; waits until they are copied."""
        layout = self.layouts[bucket.name]
        if self._is_whole(bucket):
            array.delete()
            return self._array(bucket.name, parts, layout.shard_shape, layout.stored_shape, layout.spec)
        blocks = math.prod(self.mesh.shape[axis] for axis in layout.sharded_axes)
        block = bucket.rows, bucket.columns
        copied = self._array(bucket.name, parts, (1, *block), (blocks, *block), _blocks(layout.spec))
        return _put(self.mesh, layout.spec, bucket.width)(array, copied, bucket.row, bucket.column)

    def _array(
        self,
        name: str,
        parts: Sequence[np.ndarray],
        block: Sequence[int],
        shape: Sequence[int],
        spec: PartitionSpec,
        memory: str = DEVICE,
    ) -> jax.Array:
        # Into memory of the host JAX need not copy: what it is given then must be nobody else's.
        give = np.copy if self.sees_all or memory == HOST else np.asarray
        copies = [
            jax.device_put(give(part.reshape(block)), SingleDeviceSharding(device, memory_kind=memory))
            for part, devices in zip(parts, self.groups[name], strict=True)
            for device in devices
        ]
        made = jax.make_array_from_single_device_arrays(
            tuple(shape), NamedSharding(self.mesh, spec, memory_kind=memory), copies
        )
        return jax.block_until_ready(made)

    def _is_whole(self, bucket: Bucket) -> bool:
        return bucket.size == math.prod(self.layouts[bucket.name].shard_shape)


@cache
def _take(mesh: Mesh, spec: PartitionSpec, rows: int, columns: int, width: int) -> Callable[..., jax.Array]:
    """(array, row, column) -> [shards, rows, columns], a copy of a bucket."""

    def local(shard: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(shard.reshape(-1, width), (row, column), (rows, columns))[None]

    return jax.jit(_manual(local, mesh, (spec, PartitionSpec(), PartitionSpec()), _blocks(spec)))


@cache
def _put(mesh: Mesh, spec: PartitionSpec, width: int) -> Callable[..., jax.Array]:
    """(array, [shards, rows, columns], row, column) -> the array with the bucket replaced, in the same memory."""

    def local(shard: jax.Array, block: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(shard.reshape(-1, width), block[0], (row, column)).reshape(shard.shape)

    specs = spec, _blocks(spec), PartitionSpec(), PartitionSpec()
    return jax.jit(_manual(local, mesh, specs, spec), donate_argnums=0)


def _manual(local: Callable[..., jax.Array], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., jax.Array]:
    return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)


def _blocks(spec: PartitionSpec) -> PartitionSpec:
    """Of an array with one block for each shard of an array with `spec`."""
    axes = [axis for entry in spec if entry is not None for axis in ((entry,) if isinstance(entry, str) else entry)]
    return PartitionSpec(tuple(axes) or None)
