"""What a block needs besides the activations: positions, segments, dropout keys, and a cache while decoding."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.attention import Attend
from pallas_kernels.reference import attention
from sharding import collectives


class Batch(NamedTuple):
    """Packed sequences, [B, S] each but the last; `segments` numbers a sequence's documents from 1, 0 is padding."""

    tokens: jax.Array  # int32
    targets: jax.Array  # int32: the next token
    segments: jax.Array  # int32
    positions: jax.Array  # int32: within the document
    weights: jax.Array  # float32: 1 where the target counts
    samples: jax.Array  # uint32 [B]: place in the global order of samples; keys dropout


@dataclass(frozen=True)
class Inputs:
    """What all blocks of one forward pass share."""

    split: bool
    """The sequence is cut over `tensor` between matmuls; False while decoding."""
    positions: jax.Array  # [B, S] int32
    segments: tuple[jax.Array, jax.Array] | None = None
    """Of the queries, [B, S] int32, and of the keys, [B, T]: those of another segment are not seen."""
    rope: tuple[jax.Array, jax.Array] | None = None  # cosines and sines, [B, S, K/2] float32
    dropout_key: jax.Array | None = None
    samples: jax.Array | None = None  # [B] uint32
    offset: jax.Array | int = 0
    """While decoding: where in the cache the first of these tokens stands."""
    attend: Attend = attention
    """What computes attention."""

    def cut(self, parts: int) -> tuple[Inputs, ...]:
        """Those of equal parts of the batch, in their order."""
        arrays = (self.positions, self.segments, self.rope, self.samples)
        if parts == 1:
            return (self,)
        size = len(self.positions) // parts
        return tuple(
            dataclasses.replace(self, positions=positions, segments=segments, rope=rope, samples=samples)
            for positions, segments, rope, samples in (
                jax.tree.map(lambda x, i=i: x[i * size : (i + 1) * size], arrays) for i in range(parts)
            )
        )


def running_positions(batch: Batch) -> jax.Array:
    """Of sequences that are read as one whatever documents are in them, [B, S] int32: 0, 1, ... S - 1."""
    place_BS = jax.lax.broadcasted_iota(jnp.int32, batch.positions.shape, 1)
    return collectives.varying(place_BS, tuple(collectives.varying_axes(batch.positions)))


class Cache(NamedTuple):
    """Keys and values of one layer, or of all layers where they are stacked: [(L,) B, T, G, K]."""

    keys: jax.Array
    values: jax.Array

    def write(self, k_BSGK: jax.Array, v_BSGK: jax.Array, offset: jax.Array | int) -> Cache:
        """The cache with the new tokens' keys and values at `offset`."""
        place = (0, offset, 0, 0)
        keys = jax.lax.dynamic_update_slice(self.keys, k_BSGK.astype(self.keys.dtype), place)
        return Cache(keys, jax.lax.dynamic_update_slice(self.values, v_BSGK.astype(self.values.dtype), place))
