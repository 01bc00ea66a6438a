"""Weights that stay in host memory: each layer's is brought to the device where it is used, and dropped after.

Its gradient leaves for host memory as the layer's backward pass makes it, added to those of the micro-batches before.
So a device holds the weights and gradients of a few layers, however many there are. A gradient leaves while the next
ones are made; a layer waits for its first weights, while those it uses later are on their way. What a gradient adds to
the norm is told as it is made, since it will not be back.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sharding import collectives
from sharding.layout import Layout
from sharding.mesh import AXES
from sharding.zero import Zero

DEVICE, HOST = "device", "pinned_host"
"""The memory of the devices, and that of the host from which they can copy by themselves, as JAX calls them."""


class First(NamedTuple):
    """What the loss of the first micro-batch is differentiated by; its gradient is a `Sum`."""

    place: jax.Array  # float32 zeros in host memory, as the master weight is sharded
    square: jax.Array  # float32: zero


class Sum(NamedTuple):
    """The gradient so far; what the loss of the other micro-batches is differentiated by."""

    total: jax.Array  # float32 in host memory, as the master weight is sharded
    square: jax.Array  # float32: Σ total² on this device


def first(weight: jax.Array, layout: Layout) -> First:
    """For the weights of stacked layers, in host memory. XLA makes no memory of it."""
    zeros = jnp.zeros(weight.shape, jnp.float32)
    place = jax.device_put(collectives.varying(zeros, layout.sharded_axes), jax.memory.Space.Host)
    return First(place, collectives.varying(jnp.zeros(len(weight)), layout.sharded_axes))


def fetch(so_far: First | Sum | None, weight: jax.Array, layout: Layout, zero: Zero) -> jax.Array:
    """One layer's weight as the layer uses it, from its shard in host memory. `so_far` is None where none learns."""
    return _bring(weight, layout, zero) if so_far is None else _fetch(so_far, weight, layout, zero)


def _bring(weight: jax.Array, layout: Layout, zero: Zero) -> jax.Array:
    shard = jax.device_put(weight, jax.memory.Space.Device)
    return zero.whole(collectives.varying(shard, AXES), layout)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _fetch(so_far: First | Sum, weight: jax.Array, layout: Layout, zero: Zero) -> jax.Array:
    return _bring(weight, layout, zero)


def _forward(so_far: First | Sum, weight: jax.Array, layout: Layout, zero: Zero) -> tuple[jax.Array, jax.Array | None]:
    return _bring(weight, layout, zero), so_far.total if isinstance(so_far, Sum) else None


def _backward(layout: Layout, zero: Zero, total: jax.Array | None, gradient: jax.Array) -> tuple[First | Sum, None]:
    kind = First if total is None else Sum
    summed = zero.after(zero.landed(gradient, layout), layout)
    if total is not None:
        summed += jax.device_put(total, jax.memory.Space.Device)
    return kind(jax.device_put(summed, jax.memory.Space.Host), jnp.sum(summed * summed)), None


_fetch.defvjp(_forward, _backward)
