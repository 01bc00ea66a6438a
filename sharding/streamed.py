"""Weights that stay off the device: each layer's is brought there where it is used, and dropped after.

Its gradient leaves as the layer's backward pass makes it, added to those of the micro-batches before. So a device holds
the weights and gradients of a few layers, however many there are. A gradient leaves while the next ones are made; a
layer waits for its first weights, while those it uses later are on their way. What a gradient adds to the norm is told
as it is made, since it will not be back. Where all of it is otherwise, in host memory or outside of what JAX knows, is
for a `Store` to say; what files are is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from sharding import collectives
from sharding.layout import Layout
from sharding.mesh import AXES
from sharding.zero import Zero

DEVICE, HOST = "device", "pinned_host"
"""The memory of the devices, and that of the host from which they can copy by themselves, as JAX calls them."""


def moved(array: jax.Array, memory: str) -> jax.Array:
    """The same on the same devices, in their memory or in their host's."""
    return jax.device_put(array, array.sharding.with_memory_kind(memory))


class First(NamedTuple):
    """What the loss of the first micro-batch is differentiated by; its gradient is a `Sum`."""

    place: jax.Array | None  # float32 zeros in host memory, as the master weight is sharded
    square: jax.Array  # float32: zero


class Sum(NamedTuple):
    """The gradient so far; what the loss of the other micro-batches is differentiated by."""

    total: jax.Array | None  # float32 in host memory, as the master weight is sharded
    square: jax.Array  # float32: Σ total² on this device


class Store(Protocol):
    """Where the weights of a parameter's layers are, and their gradients."""

    def first(self, layout: Layout) -> jax.Array | None:
        """What `First.place` is, for all layers."""

    def bring(self, weight: jax.Array, learns: bool) -> jax.Array:
        """This device's shard of a layer's weight, of which `weight` is what the layer was given."""

    def needs(self, so_far: First | Sum, weight: jax.Array) -> Any:
        """What `add` needs from the forward pass."""

    def add(self, needed: Any, gradient: jax.Array) -> First | Sum:
        """Adds this device's shard of a micro-batch's gradient, float32, to those before, and has the sum leave."""


@dataclass(frozen=True)
class InHostMemory:
    """In memory of the host that JAX knows: a layer is given its shards."""

    def first(self, layout: Layout) -> jax.Array:
        """XLA makes no memory of it."""
        zeros = jnp.zeros(layout.shard_shape, jnp.float32)
        return jax.device_put(collectives.varying(zeros, layout.sharded_axes), jax.memory.Space.Host)

    def bring(self, weight: jax.Array, learns: bool) -> jax.Array:
        return jax.device_put(weight, jax.memory.Space.Device)

    def needs(self, so_far: First | Sum, weight: jax.Array) -> jax.Array | None:
        return so_far.total if isinstance(so_far, Sum) else None

    def add(self, needed: jax.Array | None, gradient: jax.Array) -> First | Sum:
        kind = First if needed is None else Sum
        if needed is not None:
            gradient += jax.device_put(needed, jax.memory.Space.Device)
        return kind(jax.device_put(gradient, jax.memory.Space.Host), _square(gradient))


class Outside(Protocol):
    """Arrays that no memory of JAX's holds: a compiled program calls out for them. `layer` is an int32 scalar."""

    def weight(self, name: str, layer: jax.Array, learns: bool) -> jax.Array:
        """This device's shard of a layer's weight, in the dtype that is computed with; `learns`: for a loss that is
        differentiated, whose backward pass asks for it again."""

    def total(self, name: str, layer: jax.Array, after: jax.Array) -> jax.Array:
        """The gradient that was last kept, float32, asked for once `after` is computed. Where `keep` says that this
        device does not count, anything."""

    def keep(self, name: str, layer: jax.Array, gradient: jax.Array) -> jax.Array:
        """Takes this device's shard of a gradient; bool: whether it counts, as that of one device does of all that hold
        the same."""


@dataclass(frozen=True)
class InFile:
    """Outside, under the name of the parameter: a layer is given its number."""

    name: str
    outside: Outside

    def first(self, layout: Layout) -> None:
        return None

    def bring(self, weight: jax.Array, learns: bool) -> jax.Array:
        return self.outside.weight(self.name, weight, learns)

    def needs(self, so_far: First | Sum, weight: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return weight, so_far.square if isinstance(so_far, Sum) else None

    def add(self, needed: tuple[jax.Array, jax.Array | None], gradient: jax.Array) -> First | Sum:
        layer, before = needed
        if before is not None:
            gradient += self.outside.total(self.name, layer, before)
        counts = self.outside.keep(self.name, layer, gradient)
        kind = First if before is None else Sum
        return kind(None, jnp.where(counts, _square(gradient), 0))


def first(layout: Layout, store: Store) -> First:
    """For the weights of stacked layers."""
    place, layers = store.first(layout), layout.shard_shape[0]
    axes = AXES if place is None else layout.sharded_axes
    return First(place, collectives.varying(jnp.zeros(layers), axes))


def fetch(so_far: First | Sum | None, weight: jax.Array, layout: Layout, zero: Zero, store: Store) -> jax.Array:
    """One layer's weight as the layer uses it. `so_far` is None where none learns."""
    if so_far is None:
        return _bring(weight, layout, zero, store, learns=False)
    return _fetch(so_far, weight, layout, zero, store)


def squares(so_far: Sum, layout: Layout) -> jax.Array:
    """Σ total² of all layers, the same on the devices that hold the same."""
    replicated = [axis for axis in AXES if axis in collectives.varying_axes(so_far.square)]
    of_layers = collectives.all_max(so_far.square, [axis for axis in replicated if axis not in layout.sharded_axes])
    return of_layers.sum()


def _square(gradient: jax.Array) -> jax.Array:
    """Σ gradient², added up row by row: otherwise XLA goes by the layout that suits where the gradient is sent."""
    flat = jax.lax.optimization_barrier(gradient.reshape(-1))
    return jnp.sum(flat * flat)


def _bring(weight: jax.Array, layout: Layout, zero: Zero, store: Store, learns: bool) -> jax.Array:
    return zero.whole(collectives.varying(store.bring(weight, learns), AXES), layout)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _fetch(so_far: First | Sum, weight: jax.Array, layout: Layout, zero: Zero, store: Store) -> jax.Array:
    return _bring(weight, layout, zero, store, learns=True)


def _forward(so_far: First | Sum, weight: jax.Array, layout: Layout, zero: Zero, store: Store) -> tuple[jax.Array, Any]:
    # As a whole, which a recompute policy may not save: of what is inside, it would the gathered weight.
    return _fetch(so_far, weight, layout, zero, store), store.needs(so_far, weight)


def _backward(layout: Layout, zero: Zero, store: Store, needed: Any, gradient: jax.Array) -> tuple[First | Sum, None]:
    return store.add(needed, zero.after(zero.landed(gradient, layout), layout)), None


_fetch.defvjp(_forward, _backward)
