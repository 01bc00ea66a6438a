"""What an attention is asked to do: what is known before any array is static, so that it can name a kernel.

Shapes: `B` batch, `S` queries, `T` keys, `H` query heads, `G` key heads, `K` head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax

EMPTY = -1e30
"""The log-sum-exp of a query that sees no key: finite, so that merging it with others makes no NaN."""


class Tile(NamedTuple):
    """How one kernel cuts its work."""

    queries: int
    """Rows at a time, a power of two of at least 16, as tensor cores need."""
    keys: int
    warps: int
    stages: int
    """Of the loop's software pipeline."""


class Tiles(NamedTuple):
    """Of the three kernels of an attention."""

    forward: Tile
    d_queries: Tile
    d_keys: Tile


@dataclass(frozen=True)
class Spec:
    """One attention, for which kernels are made."""

    scale: float
    causal: bool
    window: int | None
    soft_cap: float | None
    tiles: Tiles
    interpret: bool


class Arrays(NamedTuple):
    """What an attention is of."""

    queries: jax.Array
    """[B, S, H, K]"""
    keys: jax.Array
    """[B, T, G, K]"""
    values: jax.Array
    """[B, T, G, K]"""
    segments: tuple[jax.Array, jax.Array] | None
    """[B, S] and [B, T] int32."""
    slopes: jax.Array | None
    """[H] float32, of ALiBi."""
    offset: jax.Array
    """[] int32: the key position of the first query."""
