"""Flash attention, forward (Dao 2023): one program takes a block of queries along the keys that it sees.

The softmax is made on the way, so that scores never leave the program. Knows nothing of gradients.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import triton
from pallas_kernels.flash import operands as of
from pallas_kernels.flash.cost import cost, size
from pallas_kernels.flash.scores import columns, keys, padded, queries, scores, walk
from pallas_kernels.flash.spec import EMPTY, Arrays, Spec
from pallas_kernels.triton import Memory, Span


class Softmax(NamedTuple):
    """Of a block of queries, as far as its keys have been taken."""

    highest: jax.Array
    """[n] float32, the highest logit."""
    total: jax.Array
    """[n] float32, Σ exp(logit - highest)."""
    out: jax.Array
    """[n, K] float32, Σ exp(logit - highest) · value."""


def forward(spec: Spec, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
    """The output, [B, S, H, K] in the dtype of the queries, and log-sum-exp, [B, H, S] float32."""
    q, k, v, tile = arrays.queries, arrays.keys, arrays.values, spec.tiles.forward
    batch, num_queries, heads, _ = q.shape
    operands = of.along_keys(spec, tile, arrays)
    lse_type = jax.ShapeDtypeStruct((batch, heads, num_queries), jnp.float32)
    results = [of.of_head(q), of.per_query(lse_type)]
    grid = (pl.cdiv(num_queries, tile.queries), heads, batch)
    least = cost(spec, arrays, matmuls=2, moved=size(q, k, v, q, lse_type))
    out, lse = of.run("flash_forward", partial(_kernel, spec), tile, grid, operands, results, least, spec.interpret)
    return out, lse


def _kernel(spec: Spec, number: jax.Array, refs: of.Operands, out_ref: Memory, lse_ref: Memory) -> None:
    tile = spec.tiles.forward
    rows = Span(number * tile.queries, tile.queries, True)
    block = queries(refs, rows)
    slope = None if refs.slopes is None else refs.slopes.number()

    def body(masked: bool, j: jax.Array, done: Softmax) -> Softmax:
        span = Span(j * tile.keys, tile.keys, masked)
        logits, seen, _ = scores(spec, block, keys(refs, span), slope, 1, masked)
        if seen is not None:
            logits = jnp.where(seen, logits, EMPTY)
        highest = jnp.maximum(done.highest, jnp.max(logits, axis=1))
        weights = jnp.exp(logits - highest[:, None])
        if seen is not None:
            weights = jnp.where(seen, weights, 0)  # of a query that sees none of these and none before
        fading = jnp.exp(done.highest - highest)
        values = refs.values.load(span, columns(refs.values))
        out = done.out * fading[:, None] + triton.dot(weights.astype(values.dtype), values)
        return Softmax(highest, done.total * fading + jnp.sum(weights, axis=1), out)

    start = Softmax(
        refs.queries.zeros(tile.queries) + EMPTY,
        refs.queries.zeros(tile.queries),
        refs.queries.zeros(tile.queries, padded(out_ref.shape[-1])),
    )
    highest, total, out = walk(refs, body, start)
    divisor = jnp.where(total == 0, 1, total)
    out_ref.store(out / divisor[:, None], rows, columns(out_ref))
    lse_ref.store(highest + jnp.log(divisor), rows)  # EMPTY where nothing was seen
