"""ZeRO: a stage is a time. When are weights gathered, and when are gradients scattered back?

At rest, stages 1 to 3 hold the same thing: 1/N of the float32 master weights and moments. Inside the step:

    stage  weights are gathered            gradients are scattered
    0      never (they are whole)          never: all-reduced once, after the micro-batches
    1      once, before the micro-batches  once, after them
    2      once, before the micro-batches  as each layer's backward makes them
    3      where a layer uses them         as each layer's backward makes them

`Zero` holds that rule for one leaf at a time. One rule reduces every gradient: a parameter is cast to *varying* over
the axes it is replicated on before the micro-batches, and its gradient is summed over exactly those axes after them.
Knows nothing of models or optimizers.
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from sharding import collectives
from sharding.layout import Layout
from sharding.mesh import AXES

FETCHED = "fetched_weight"
"""The name of every weight as a layer uses it. No recompute policy may save it."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ZeroConfig:
    """Which state is sharded over `data`, told as the time when weights are gathered and gradients scattered."""

    stage: int = Field(default=1, ge=0, le=3)
    """0: nothing is sharded; 1: optimizer state; 2: and gradients; 3: and weights: [zero.md](zero.md)."""
    persist_below: int = Field(default=0, ge=0)
    """Parameters with fewer elements than this (per layer, whole) stay replicated at every stage."""


@plain_dataclass(frozen=True)
class Zero:
    """The rule of one stage. Weights travel and work in `compute`, gradients travel in `reduce`."""

    stage: int
    compute: DTypeLike
    reduce: DTypeLike

    def before(self, shard: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array | None]:
        """Shard at rest -> (what the loss is differentiated by, what it needs besides), before the micro-batches.

        The shard is of the float32 master weight or, where that is kept elsewhere, of its copy in `compute`.
        """
        shard = collectives.varying(shard, AXES)
        if layout.zero_dim is None or self.stage < 2:
            return _gather(shard.astype(self.compute), layout), None
        # A gradient has the dtype of what it is a gradient of: float32, also where the shard is not.
        place = shard if shard.dtype == jnp.float32 else jnp.zeros_like(shard, jnp.float32)
        if self.stage == 3:
            return place, None if place is shard else shard
        return place, _gather(shard.astype(self.compute), layout)

    def fetch(self, leaf: jax.Array, besides: jax.Array | None, layout: Layout) -> jax.Array:
        """The weight as a layer uses it, from what `before` gave (of one layer, where they are stacked)."""
        if layout.zero_dim is None or self.stage < 2:
            return leaf
        return _fetch(leaf, besides, layout, self)

    def whole(self, shard: jax.Array, layout: Layout) -> jax.Array:
        """The weight as a layer uses it, of its shard at rest; gathered here and now."""
        return checkpoint_name(_gather(shard.astype(self.compute), layout), FETCHED)

    def landed(self, gradient: jax.Array, layout: Layout) -> jax.Array:
        """The gradient of what `whole` gave -> this device's shard of its sum over the ZeRO group, float32."""
        gradient = gradient.astype(self.reduce)
        return (gradient if layout.zero_dim is None else _scatter(gradient, layout)).astype(jnp.float32)

    def after(self, gradient: jax.Array, layout: Layout) -> jax.Array:
        """The gradient accumulated on this device, float32 -> the global gradient, as the master weight is sharded."""
        replicated = [axis for axis in AXES if axis not in layout.sharded_axes]
        gradient = gradient.astype(self.reduce)
        if layout.zero_dim is not None and self.stage == 1:
            gradient = _scatter(gradient, layout)
        return collectives.all_sum(gradient, replicated).astype(jnp.float32)


def _gather(shard: jax.Array, layout: Layout) -> jax.Array:
    """This device's shards at rest, from all over the ZeRO group -> the block it computes with."""
    if (dim := layout.zero_dim) is None:
        return shard
    whole = collectives.gather(shard, layout.zero_axes, dim)
    return jax.lax.slice_in_dim(whole, 0, layout.dims[dim].block, axis=dim)


def _scatter(gradient: jax.Array, layout: Layout) -> jax.Array:
    """The gradient of a block -> this device's shard of its sum over the ZeRO group."""
    dim = layout.zero_dim
    assert dim is not None
    padding = [(0, n.shard * n.zero_shards - n.block if i == dim else 0) for i, n in enumerate(layout.dims)]
    return collectives.scatter_sum(jnp.pad(gradient, padding), layout.zero_axes, dim)


# The transpose of a bfloat16 all-gather is a bfloat16 reduce-scatter, and would add up in bfloat16: hence a gradient of
# our own. Where there is a weight besides, `place` is only where the gradient lands.
@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _fetch(place: jax.Array, besides: jax.Array | None, layout: Layout, zero: Zero) -> jax.Array:
    weight = place if besides is None else besides
    return zero.whole(weight, layout) if zero.stage == 3 else checkpoint_name(weight, FETCHED)


def _fetch_forward(place: jax.Array, besides: jax.Array | None, layout: Layout, zero: Zero) -> tuple[jax.Array, None]:
    return _fetch(place, besides, layout, zero), None


def _fetch_backward(layout: Layout, zero: Zero, _: None, gradient: jax.Array) -> tuple[jax.Array, None]:
    return zero.landed(gradient, layout), None


_fetch.defvjp(_fetch_forward, _fetch_backward)
