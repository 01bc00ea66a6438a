"""One chunk of what a stage holds for all its chunks, stacked on dim 0: [chunks x depth, ...]."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def take_chunk(x: jax.Array, chunk: jax.Array, num_chunks: int) -> jax.Array:
    """[chunks x depth, ...] -> [depth, ...]; `chunk` is int32."""
    if num_chunks == 1:
        return x
    depth = x.shape[0] // num_chunks
    return jax.lax.dynamic_slice_in_dim(x, chunk * depth, depth)


def put_chunk(x: jax.Array, new: jax.Array, chunk: jax.Array) -> jax.Array:
    """`x` with `new` [depth, ...] in the place of one chunk."""
    return jax.lax.dynamic_update_slice_in_dim(x, new, chunk * new.shape[0], 0)


def add_chunk(total: jax.Array, new: jax.Array, chunk: jax.Array, num_chunks: int) -> jax.Array:
    """`total`, float32, with `new` [depth, ...] added to one chunk."""
    new = new.astype(jnp.float32)
    if num_chunks == 1:
        return total + new
    return put_chunk(total, new + take_chunk(total, chunk, num_chunks), chunk)
