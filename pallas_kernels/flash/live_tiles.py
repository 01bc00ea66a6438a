"""Which tiles of scores hold anything that is seen: a table that the kernels follow, made before they run.

A kernel takes one block of rows (queries, or keys for their gradients) and walks along the other side. For each block
the table has four numbers, [first, full_first, full_end, end): tiles before `first` and from `end` on hold nothing, and
those from `full_first` to `full_end` are seen whole, so that nothing in them needs a mask.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.flash.spec import Spec, Tile


def live_tiles(
    spec: Spec,
    tile: Tile,
    num_queries: int,
    num_keys: int,
    offset: jax.Array,
    segments: tuple[jax.Array, jax.Array] | None,
    by_keys: bool = False,
) -> jax.Array:
    """[B or 1, blocks, 4] int32: a row for each block of queries, or of keys if `by_keys`.

    Args:
        offset: the key position of the first query, int32 [].
        segments: int32 [B, S] and [B, T]. A tile whose two ranges of ids do not meet is empty.
    """
    first_query, last_query = _ends(tile.queries, num_queries)
    first_key, last_key = _ends(tile.keys, num_keys)
    nearest = (offset + first_query)[:, None] - last_key[None, :]  # the smallest distance in a tile
    farthest = (offset + last_query)[:, None] - first_key[None, :]
    live = jnp.ones((1, *nearest.shape), bool)
    full = jnp.broadcast_to((first_key + tile.keys <= num_keys)[None, None, :], live.shape)
    if by_keys:  # there the rows beyond the last query are many, and theirs would be added up
        full &= (first_query + tile.queries <= num_queries)[None, :, None]
    if spec.causal:
        live, full = live & (farthest >= 0), full & (nearest >= 0)
    if spec.window is not None:
        live, full = live & (nearest < spec.window), full & (farthest < spec.window)
    if segments is not None:
        (low_q, high_q), (low_k, high_k) = _ranges(segments[0], tile.queries), _ranges(segments[1], tile.keys)
        live = live & (low_q[:, :, None] <= high_k[:, None, :]) & (low_k[:, None, :] <= high_q[:, :, None])
        full = full & (low_q == high_q)[:, :, None] & (low_k == high_k)[:, None, :]
    return _runs(live.mT, (live & full).mT) if by_keys else _runs(live, live & full)


def _ends(block: int, size: int) -> tuple[jax.Array, jax.Array]:
    """Of every block, the first and the last element that is there."""
    first = jnp.arange(0, size, block, dtype=jnp.int32)
    return first, jnp.minimum(first + block, size) - 1


def _ranges(ids_BN: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """The smallest and the largest id of every block, [B, blocks] each."""
    padding = -ids_BN.shape[1] % block
    blocks = jnp.pad(ids_BN, ((0, 0), (0, padding)), mode="edge").reshape(ids_BN.shape[0], -1, block)
    return blocks.min(-1), blocks.max(-1)


def _runs(live: jax.Array, full: jax.Array) -> jax.Array:
    """From [.., rows, columns] of what is live and what is full to the four numbers of each row."""
    columns = live.shape[-1]
    place = jnp.arange(columns, dtype=jnp.int32)
    end = jnp.max(jnp.where(live, place + 1, 0), axis=-1)
    first = jnp.minimum(jnp.min(jnp.where(live, place, columns), axis=-1), end)
    full_first = jnp.minimum(jnp.min(jnp.where(full, place, columns), axis=-1), end)
    after = ~full & (place >= full_first[..., None])  # the first run of full tiles; what follows it is masked
    full_end = jnp.minimum(jnp.min(jnp.where(after, place, columns), axis=-1), end)
    return jnp.stack([first, full_first, full_end, end], axis=-1).astype(jnp.int32)
