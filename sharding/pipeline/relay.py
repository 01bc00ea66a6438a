"""One batch through all stages, one after the other: decoding, where there is nothing to fill a pipeline with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sharding import collectives
from sharding.mesh import PIPELINE as AXIS
from sharding.pipeline.branch import branch
from sharding.pipeline.chunks import put_chunk, take_chunk
from sharding.pipeline.stages import Stages

Tree = Any
Blocks = Callable[[Tree, jax.Array, jax.Array, Tree], tuple[jax.Array, Tree]]
"""(leaves of some layers, their numbers, activations, cache) -> (activations, cache), a cache of those layers."""


def relay(blocks: Blocks, stages: Stages, leaves: Tree, x: jax.Array, cache: Tree) -> tuple[jax.Array, Tree]:
    """The activations after all layers, the same on all stages, and this stage's cache.

    `leaves` and `cache` hold the layers of this stage, [chunks x depth, ...] each; `x` varies over all mesh axes.
    """
    stage = jax.lax.axis_index(AXIS)
    numbers = jnp.asarray(stages.numbers)[stage]

    def mine(x: jax.Array, cache: Tree, chunk: jax.Array) -> tuple[jax.Array, Tree]:
        def part(array: jax.Array) -> jax.Array:
            return take_chunk(array, chunk, stages.num_chunks)

        x, written = blocks(jax.tree.map(part, leaves), numbers[chunk], x, jax.tree.map(part, cache))
        return x, jax.tree.map(lambda all_, new: put_chunk(all_, new, chunk), cache, written)

    def hop(carry: tuple[jax.Array, Tree], virtual: jax.Array) -> tuple[tuple[jax.Array, Tree], None]:
        chunk, turn = virtual // stages.num_stages, virtual % stages.num_stages
        x, cache = branch("pipeline_relay", stage == turn, mine, lambda x, cache, _: (x, cache), *carry, chunk)
        return (collectives.shift(x, AXIS, 1, around=True), cache), None

    (x, cache), _ = jax.lax.scan(hop, (x, cache), jnp.arange(len(stages.num_layers)))
    return collectives.all_sum(jnp.where(stage == 0, x, 0), [AXIS]), cache
