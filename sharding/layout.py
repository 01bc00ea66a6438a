"""How one parameter lies on the mesh: what is padded, what is sharded, and over which axes.

A dim may be cut twice: by its logical axis over the model axes (`tensor`), which the layer's arithmetic sees, and then
by ZeRO over the data axes, which it never sees. Sizes that do not divide are padded with zeros at rest. `store` and
`logical` go between the array as a user knows it and the array as the devices hold it.
Knows nothing of models beyond the names of their logical axes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

# logical axis -> the mesh axes that its dim is cut over. One table for every model.
RULES: dict[str, tuple[str, ...]] = {
    "layers": ("pipeline",),
    "vocab": ("pipeline", "tensor"),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "ffn": ("tensor",),
    "embed": (),
    "head_dim": (),
    "positions": (),
}
# Where the axis has more devices than the dim has entries, these stay whole on each (and the layer picks its own);
# every other dim is padded to divide.
WHOLE_IF_FEWER = ("kv_heads",)


@dataclass(frozen=True)
class Dim:
    """One dim: `size` logical entries in `model_shards` blocks, each in `zero_shards` shards.

    `order`, where the entries do not stand in their own order, is the logical index of every stored entry; -1: padding.
    """

    size: int
    model_axes: tuple[str, ...] = ()
    model_shards: int = 1
    zero_axes: tuple[str, ...] = ()
    zero_shards: int = 1
    order: tuple[int, ...] = ()

    @property
    def block(self) -> int:
        """Entries that one device computes with."""
        return -(-(len(self.order) or self.size) // self.model_shards)

    @property
    def shard(self) -> int:
        """Entries that one device holds at rest."""
        return -(-self.block // self.zero_shards)

    @property
    def stored(self) -> int:
        return self.shard * self.zero_shards * self.model_shards

    @property
    def axes(self) -> tuple[str, ...]:
        return self.model_axes + self.zero_axes


@dataclass(frozen=True)
class Layout:
    """One parameter's dims. Parameters of repeated layers are stacked: their dim 0 is the layer."""

    dims: tuple[Dim, ...]
    stacked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return tuple(dim.size for dim in self.dims)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The padded global shape at rest."""
        return tuple(dim.stored for dim in self.dims)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """What one device holds at rest."""
        return tuple(dim.shard for dim in self.dims)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """What one device computes with, after the ZeRO gather."""
        return tuple(dim.block for dim in self.dims)

    @property
    def spec(self) -> PartitionSpec:
        """The PartitionSpec of the array at rest."""
        return PartitionSpec(*(_entry(dim.axes) for dim in self.dims))

    @property
    def is_logical(self) -> bool:
        """The array at rest is the logical one, entry for entry."""
        return self.stored_shape == self.shape and not any(dim.order for dim in self.dims)

    @property
    def sharded_axes(self) -> tuple[str, ...]:
        """Every axis that some dim is cut over; the array is replicated over all others."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    @property
    def zero_dim(self) -> int | None:
        """The dim that ZeRO cuts, if any."""
        return next((i for i, dim in enumerate(self.dims) if dim.zero_axes), None)

    @property
    def zero_axes(self) -> tuple[str, ...]:
        return () if self.zero_dim is None else self.dims[self.zero_dim].zero_axes

    @property
    def layer(self) -> Layout:
        """The layout of one layer's slice of a stacked parameter."""
        assert self.stacked, "only the parameters of repeated layers have slices"
        return Layout(self.dims[1:])

    def store(self, x: jax.Array) -> jax.Array:
        """Logical array -> padded array at rest (global view)."""
        for i, dim in enumerate(self.dims):
            if dim.order:
                # Past the end, and so filled: -1 would be the last entry.
                x = jnp.take(x, jnp.asarray(dim.order) % (dim.size + 1), axis=i, mode="fill", fill_value=0)
            elif dim.stored != dim.size:
                x = _pad(x, i, dim.block * dim.model_shards)
                x = x.reshape(*x.shape[:i], dim.model_shards, dim.block, *x.shape[i + 1 :])
                x = _pad(x, i + 1, dim.shard * dim.zero_shards)
                x = x.reshape(*x.shape[:i], dim.stored, *x.shape[i + 2 :])
        return x

    def logical(self, x: jax.Array) -> jax.Array:
        """Padded array at rest -> logical array (global view). Undoes `store`."""
        for i, dim in enumerate(self.dims):
            if dim.order:
                x = jnp.take(x, jnp.asarray([dim.order.index(entry) for entry in range(dim.size)]), axis=i)
            elif dim.stored != dim.size:
                x = x.reshape(*x.shape[:i], dim.model_shards, dim.shard * dim.zero_shards, *x.shape[i + 1 :])
                x = jax.lax.slice_in_dim(x, 0, dim.block, axis=i + 1)
                x = x.reshape(*x.shape[:i], dim.block * dim.model_shards, *x.shape[i + 2 :])
                x = jax.lax.slice_in_dim(x, 0, dim.size, axis=i)
        return x

    @property
    def logical_spec(self) -> PartitionSpec:
        """The PartitionSpec of the logical array, which no device needs to hold whole.

        JAX refuses shards of unequal size, and entries in another order are on other devices: the axes of such a dim
        cut another dim instead, where one divides. So `store` and `logical` work along dims that are not cut.
        """
        fits = [dim.stored == dim.size and not dim.order for dim in self.dims]
        axes = [dim.axes if fit else () for dim, fit in zip(self.dims, fits, strict=True)]
        sizes = [dim.shard if fit else dim.size for dim, fit in zip(self.dims, fits, strict=True)]
        for i, dim in enumerate(self.dims):
            if fits[i]:
                continue
            for moved, shards in ((dim.model_axes, dim.model_shards), (dim.zero_axes, dim.zero_shards)):
                to = next((to for to, size in enumerate(sizes) if to != i and size % shards == 0), None)
                if to is not None:
                    axes[to], sizes[to] = axes[to] + moved, sizes[to] // shards
        return PartitionSpec(*map(_entry, axes))


def plan(
    shape: Sequence[int],
    logical_axes: Sequence[str],
    mesh: Mapping[str, int],
    *,
    rules: Mapping[str, tuple[str, ...]] = RULES,
    layer_order: Sequence[int] = (),
    zero_axes: Sequence[str] = (),
    persist_below: int = 0,
) -> Layout:
    """The layout of a parameter of logical `shape` on a mesh with these axis sizes.

    `layer_order` is the `Dim.order` of stacked layers, if they are not just as they come. `zero_axes` are the axes ZeRO
    shards over (none: stage 0). The dim it cuts is the one that needs the least padding, then one that the model axes
    leave whole, then the largest. Parameters with fewer than `persist_below` elements per layer stay whole.
    """
    assert len(shape) == len(logical_axes), f"{shape} has {len(shape)} dims, {logical_axes} names {len(logical_axes)}"
    stacked = logical_axes[0] == "layers"
    dims = [_model_dim(size, name, mesh, rules) for size, name in zip(shape, logical_axes, strict=True)]
    if stacked:
        dims[0] = dataclasses.replace(dims[0], order=tuple(layer_order))
    zero_axes = tuple(axis for axis in zero_axes if mesh[axis] > 1)
    if zero_axes and math.prod(shape[stacked:]) >= persist_below:
        shards = math.prod(mesh[axis] for axis in zero_axes)
        cut = [dataclasses.replace(dim, zero_axes=zero_axes, zero_shards=shards) for dim in dims]
        best = min(
            range(stacked, len(dims)),
            key=lambda i: (cut[i].stored / dims[i].stored, dims[i].model_shards, -dims[i].size),
        )
        dims[best] = cut[best]
    return Layout(tuple(dims), stacked)


def _model_dim(size: int, name: str, mesh: Mapping[str, int], rules: Mapping[str, tuple[str, ...]]) -> Dim:
    axes = tuple(axis for axis in rules[name] if mesh.get(axis, 1) > 1)
    shards = math.prod(mesh[axis] for axis in axes)
    if name in WHOLE_IF_FEWER and size < shards:
        return Dim(size)
    return Dim(size, axes, shards)


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return axes[0] if len(axes) == 1 else axes or None


def _pad(x: jax.Array, dim: int, size: int) -> jax.Array:
    return jnp.pad(x, [(0, size - n if i == dim else 0) for i, n in enumerate(x.shape)])
