"""Scores of one tile, as all kernels compute them: scaled, bounded, biased by distance, and which of them are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import triton
from pallas_kernels.flash.operands import Operands
from pallas_kernels.flash.spec import Spec
from pallas_kernels.triton import Memory, Span


class Side(NamedTuple):
    """A block of queries or keys, one side of a tile."""

    rows: jax.Array
    """[n, K]: K as `padded` has it, 0 beyond the head dim."""
    places: jax.Array
    """[n] int32: key positions."""
    inside: jax.Array
    """[n] bool: whether there is such a row."""
    ids: jax.Array | None
    """[n] int32, of segments."""


def padded(size: int) -> int:
    """A head dim as tensor cores take it: a power of two, of at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def columns(array: Memory) -> Span:
    """The head dim of [.., K]."""
    size = array.shape[-1]
    return Span(0, padded(size), padded(size) != size)


def queries(refs: Operands, rows: Span, *head: Any) -> Side:
    """A block of queries, of one head of those that share a key head where the array has them all."""
    return _side(refs.queries, rows, refs.offset.number(0), refs.query_ids, head)


def keys(refs: Operands, rows: Span) -> Side:
    return _side(refs.keys, rows, 0, refs.key_ids, ())


def _side(array: Memory, rows: Span, first_place: Any, all_ids: Memory | None, head: tuple[Any, ...]) -> Side:
    index = rows.start + lax.broadcasted_iota(jnp.int32, (rows.size,), 0)
    ids = None if all_ids is None else all_ids.load(rows)
    return Side(array.load(rows, *head, columns(array)), first_place + index, index < array.shape[0], ids)


class Scores(NamedTuple):
    """Of a tile, [n, m]: rows of one side along rows of the other."""

    logits: jax.Array
    """float32"""
    seen: jax.Array | None
    """None where all are."""
    slope: jax.Array
    """d logit / d (q · k), float32."""


def scores(spec: Spec, one: Side, other: Side, alibi: jax.Array | None, sign: int, masked: bool) -> Scores:
    """Of `one` along `other`. `sign` is 1 where `one` is the queries, and -1 where it is the keys."""
    logits = triton.dot(one.rows, other.rows, trans_b=True) * spec.scale
    slope = jnp.full_like(logits, spec.scale)
    if spec.soft_cap is not None:
        bounded = jnp.tanh(logits / spec.soft_cap)
        logits, slope = spec.soft_cap * bounded, slope * (1 - bounded * bounded)
    distance = sign * (one.places[:, None] - other.places[None, :])
    if alibi is not None:
        logits -= alibi * jnp.abs(distance.astype(jnp.float32))  # of floats: some assemblers get that of integers wrong
    return Scores(logits, _seen(spec, one, other, distance) if masked else None, slope)


def _seen(spec: Spec, one: Side, other: Side, distance: jax.Array) -> jax.Array:
    seen = jnp.broadcast_to(other.inside[None, :], distance.shape)  # results of rows beyond `one` are never written
    if spec.causal:
        seen &= distance >= 0
    if spec.window is not None:
        seen &= distance < spec.window
    if one.ids is not None and other.ids is not None:
        seen &= one.ids[:, None] == other.ids[None, :]
    return seen


def walk(refs: Operands, body: Callable[[bool, jax.Array, Any], Any], carry: Any) -> Any:
    """Runs `body(masked, j, carry)` for the live tiles of this block (`live_tiles`): whole ones first, then others.

    One loop takes those before and after the whole ones, so that what masks is there once.
    """
    first, full_first, full_end, end = (refs.table.number(i) for i in range(4))
    before = full_first - first

    def around(i: jax.Array, carry: Any) -> Any:
        return body(True, jnp.where(i < before, first + i, full_end + i - before), carry)

    carry = lax.fori_loop(full_first, full_end, lambda j, carry: body(False, j, carry), carry)
    return lax.fori_loop(0, before + end - full_end, around, carry)
