"""Pallas' route through Triton: all that is special to it, so that another route has one file to replace.

Rows are loaded and stored under a mask wherever they may lie beyond an array's end: jax before 0.12 guards neither
reads nor writes there, and a plain index that does not fit is silently moved.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt


def compiler_params(num_warps: int, num_stages: int) -> Any:
    """For `pallas_call`: without them, jax 0.10 takes another route.

    From 0.11 on, jax says wherever a kernel is lowered that this route will go. Who trains can do nothing about it.
    """
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    return plt.CompilerParams(num_warps=num_warps, num_stages=num_stages)


class Span(NamedTuple):
    """A part of a dim."""

    start: Any
    size: int
    """A power of two."""
    guarded: bool
    """Whether it may go beyond the end."""


class Memory:
    """An array that a kernel reads or writes, by blocks: at a Span or a number for each dim."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ref.shape

    def zeros(self, *shape: int) -> jax.Array:
        """float32, to add up what is computed from this array."""
        return jnp.zeros(shape, jnp.float32)

    def number(self, *place: Any) -> jax.Array:
        """One element."""
        return self.ref[place]

    def load(self, *index: Any) -> jax.Array:
        """The block at `index`, 0 beyond the end of what is guarded."""
        mask = _inside(self.shape, index)
        return plt.load(self._at(index), mask=mask, other=None if mask is None else jnp.zeros((), self.ref.dtype))

    def store(self, value: jax.Array, *index: Any) -> None:
        """Writes a block, in the dtype of the array; nothing beyond the end of what is guarded."""
        plt.store(self._at(index), value.astype(self.ref.dtype), mask=_inside(self.shape, index))

    def _at(self, index: Sequence[Any]) -> Any:
        return self.ref.at[tuple(map(_slice, index))]


def dot(a: jax.Array, b: jax.Array, *, trans_b: bool = False) -> jax.Array:
    """a · b or a · bᵀ in float32; float32 is not rounded to TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return plt.dot(a, b, trans_b=trans_b, precision=precision)


def _slice(part: Any) -> Any:
    """What is guarded begins at a number that is not known before: jax 0.12 refuses it otherwise."""
    if not isinstance(part, Span):
        return part
    start = lax.full((), part.start, jnp.int32) if part.guarded and isinstance(part.start, int) else part.start
    return pl.ds(start, part.size)


def _inside(shape: Sequence[int], index: Sequence[Any]) -> jax.Array | None:
    """Which elements of a block are there; None where none is guarded."""
    spans = [(part, size) for part, size in zip(index, shape, strict=True) if isinstance(part, Span)]
    block = tuple(span.size for span, _ in spans)
    masks = [
        span.start + lax.broadcasted_iota(jnp.int32, block, dim) < size
        for dim, (span, size) in enumerate(spans)
        if span.guarded
    ]
    return reduce(jnp.logical_and, masks) if masks else None
