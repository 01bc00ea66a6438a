"""Pallas' route through Triton: all that is special to it, so that another route has one file to replace.

Rows are loaded and stored under a mask wherever they may lie beyond an array's end: jax before 0.12 guards neither
reads nor writes there, and a plain index that does not fit is silently moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt


def compiler_params(num_warps: int, num_stages: int) -> Any:
    """For `pallas_call`: without them, jax 0.10 takes another route."""
    return plt.CompilerParams(num_warps=num_warps, num_stages=num_stages)


class Span(NamedTuple):
    """A part of a dim."""

    start: Any
    size: int
    """A power of two."""
    guarded: bool
    """Whether it may go beyond the end."""


def load(ref: Any, *index: Any) -> jax.Array:
    """The block at `index`, a Span or a number for each dim; 0 beyond the end of what is guarded."""
    block, mask = _block(ref, index)
    return plt.load(block, mask=mask, other=None if mask is None else jnp.zeros((), ref.dtype))


def store(ref: Any, value: jax.Array, *index: Any) -> None:
    """Writes a block, in the dtype of `ref`; nothing beyond the end of what is guarded."""
    block, mask = _block(ref, index)
    plt.store(block, value.astype(ref.dtype), mask=mask)


def dot(a: jax.Array, b: jax.Array, *, trans_b: bool = False) -> jax.Array:
    """a · b or a · bᵀ in float32; float32 is not rounded to TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return plt.dot(a, b, trans_b=trans_b, precision=precision)


def _block(ref: Any, index: Sequence[Any]) -> tuple[Any, Any]:
    spans = [(dim, part) for dim, part in enumerate(index) if isinstance(part, Span)]
    shape = tuple(span.size for _, span in spans)
    mask = None
    for place, (dim, span) in enumerate(spans):
        if span.guarded:
            inside = span.start + lax.broadcasted_iota(jnp.int32, shape, place) < ref.shape[dim]
            mask = inside if mask is None else mask & inside
    return ref.at[tuple(pl.ds(part.start, part.size) if isinstance(part, Span) else part for part in index)], mask
