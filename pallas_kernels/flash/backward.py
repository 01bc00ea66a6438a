"""Flash attention, backward (Dao 2023): scores are made again, block by block, from the log-sum-exp that forward left.

Two kernels, and no sum of two programs: one takes a block of queries along its keys, the other a block of keys along
the queries of all heads that share it. So the result does not depend on who is first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import triton
from pallas_kernels.flash import operands as of
from pallas_kernels.flash.cost import cost, size
from pallas_kernels.flash.live_tiles import live_tiles
from pallas_kernels.flash.scores import Scores, columns, keys, padded, queries, scores, walk
from pallas_kernels.flash.spec import Arrays, Spec
from pallas_kernels.triton import Memory, Span


def backward(
    spec: Spec, arrays: Arrays, lse_BHS: jax.Array, delta_BHS: jax.Array, d_out_BSHK: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradients of queries, keys and values, in their shapes and dtypes.

    `delta` is the sum over the head dim of output x its gradient, less the gradient of `lse`; float32.
    """
    d_q = _d_queries(spec, arrays, lse_BHS, delta_BHS, d_out_BSHK)
    return d_q, *_d_keys(spec, arrays, lse_BHS, delta_BHS, d_out_BSHK)


def _d_queries(spec: Spec, arrays: Arrays, lse: jax.Array, delta: jax.Array, d_out: jax.Array) -> jax.Array:
    q, k, v, tile = arrays.queries, arrays.keys, arrays.values, spec.tiles.d_queries
    batch, num_queries, heads, _ = q.shape
    gradients = {"d_out": of.of_head(d_out), "lse": of.per_query(lse), "delta": of.per_query(delta)}
    operands = of.along_keys(spec, tile, arrays, **gradients)
    grid = (pl.cdiv(num_queries, tile.queries), heads, batch)
    least = cost(spec, arrays, matmuls=3, moved=size(q, k, v, d_out, lse, delta, q))
    kernel = partial(_d_queries_kernel, spec)
    (d_q,) = of.run("flash_d_queries", kernel, tile, grid, operands, [of.of_head(q)], least, spec.interpret)
    return d_q


def _d_queries_kernel(spec: Spec, number: jax.Array, refs: of.Operands, d_queries_ref: Memory) -> None:
    tile = spec.tiles.d_queries
    rows = Span(number * tile.queries, tile.queries, True)
    block = queries(refs, rows)
    d_out = refs.d_out.load(rows, columns(refs.d_out))
    lse, delta = refs.lse.load(rows), refs.delta.load(rows)
    slope = None if refs.slopes is None else refs.slopes.number()

    def body(masked: bool, j: jax.Array, d_queries: jax.Array) -> jax.Array:
        span = Span(j * tile.keys, tile.keys, masked)
        others = keys(refs, span)
        tile_scores = scores(spec, block, others, slope, 1, masked)
        values = refs.values.load(span, columns(refs.values))
        weights = _weights(tile_scores, lse[:, None])
        d_weights = triton.dot(d_out, values, trans_b=True)
        d_products = weights * (d_weights - delta[:, None]) * tile_scores.slope
        return d_queries + triton.dot(d_products.astype(others.rows.dtype), others.rows)

    start = refs.queries.zeros(tile.queries, padded(d_queries_ref.shape[-1]))
    d_queries_ref.store(walk(refs, body, start), rows, columns(d_queries_ref))


def _d_keys(
    spec: Spec, arrays: Arrays, lse: jax.Array, delta: jax.Array, d_out: jax.Array
) -> tuple[jax.Array, jax.Array]:
    q, k, v, segments = arrays.queries, arrays.keys, arrays.values, arrays.segments
    batch, num_keys, kv_heads, _ = k.shape
    sharing, tile = q.shape[2] // kv_heads, spec.tiles.d_keys
    query_ids, key_ids = segments or (None, None)
    table = live_tiles(spec, tile, q.shape[1], num_keys, arrays.offset, segments, by_keys=True)
    operands = of.Operands(
        table=of.of_block(table),
        offset=of.of_all(arrays.offset[None]),
        queries=of.of_group(q, sharing),
        keys=of.of_head(k),
        values=of.of_head(v),
        query_ids=of.of_sample(query_ids),
        key_ids=of.of_sample(key_ids),
        slopes=of.per_head(arrays.slopes, sharing),
        d_out=of.of_group(d_out, sharing),
        lse=of.per_query(lse, sharing),
        delta=of.per_query(delta, sharing),
    )
    grid = (pl.cdiv(num_keys, tile.keys), kv_heads, batch)
    least = cost(spec, arrays, matmuls=4, moved=size(q, k, v, d_out, lse, delta, k, v))
    kernel = partial(_d_keys_kernel, spec, sharing)
    results = [of.of_head(k), of.of_head(v)]
    d_k, d_v = of.run("flash_d_keys", kernel, tile, grid, operands, results, least, spec.interpret)
    return d_k, d_v


def _d_keys_kernel(
    spec: Spec, sharing: int, number: jax.Array, refs: of.Operands, d_keys_ref: Memory, d_values_ref: Memory
) -> None:
    tile = spec.tiles.d_keys
    rows = Span(number * tile.keys, tile.keys, True)
    block, values = keys(refs, rows), refs.values.load(rows, columns(refs.values))

    def of_one_head(head: Any, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        slope = None if refs.slopes is None else refs.slopes.number(head)

        def body(masked: bool, j: jax.Array, done: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            span = Span(j * tile.queries, tile.queries, masked)
            others = queries(refs, span, head)
            tile_scores = scores(spec, block, others, slope, -1, masked)
            d_out = refs.d_out.load(span, head, columns(refs.d_out))
            lse, delta = refs.lse.load(head, span), refs.delta.load(head, span)
            weights = _weights(tile_scores, lse[None, :])
            d_weights = triton.dot(values, d_out, trans_b=True)
            d_products = weights * (d_weights - delta[None, :]) * tile_scores.slope
            d_keys, d_values = done
            return (
                d_keys + triton.dot(d_products.astype(others.rows.dtype), others.rows),
                d_values + triton.dot(weights.astype(d_out.dtype), d_out),
            )

        return walk(refs, body, gradients)

    start = refs.queries.zeros(tile.keys, padded(d_keys_ref.shape[-1]))
    d_keys, d_values = lax.fori_loop(0, sharing, of_one_head, (start, start))
    d_keys_ref.store(d_keys, rows, columns(d_keys_ref))
    d_values_ref.store(d_values, rows, columns(d_values_ref))


def _weights(tile_scores: Scores, lse: jax.Array) -> jax.Array:
    """Softmax of a tile, 0 where nothing is seen."""
    weights = jnp.exp(tile_scores.logits - lse)
    return weights if tile_scores.seen is None else jnp.where(tile_scores.seen, weights, 0)
