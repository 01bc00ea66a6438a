"""Megatron's tensor and sequence parallelism, as pairs of functions that do nothing where `tensor` has size 1.

Between the matmuls a layer works on its slice of the sequence (`split`); `enter` makes the sequence whole before a
column-parallel matmul, `leave` sums the partial results of a row-parallel one and goes back to the slice. Decoding
keeps the sequence whole (one token cannot be split): then `enter` does nothing and `leave` is an all-reduce.

Shapes: `B` batch, `S` sequence (`s` = this device's slice), `T` = tokens, `D` model, `V` vocabulary (`v` = this
device's block), `G` key and value heads, `K` head dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from sharding import collectives

AXIS = "tensor"
CHUNK_TOKENS = 1024
"""Tokens whose logits are held at a time. With fewer, a large table's reads, not its matmuls, would take the time."""


def enter(x_BsD: jax.Array, split: bool) -> jax.Array:
    """[B, s, D] -> [B, S, D] before a column-parallel matmul: all-gather along the sequence, its gradient scattered."""
    return collectives.gather(x_BsD, [AXIS], 1) if split else x_BsD


def leave(x_BSD: jax.Array, split: bool) -> jax.Array:
    """[B, S, D] partial sums -> [B, s, D] after a row-parallel matmul: reduce-scatter along the sequence."""
    return collectives.scatter_sum(x_BSD, [AXIS], 1) if split else collectives.all_sum(x_BSD, [AXIS])


def slice_of_sequence(x_BS: jax.Array, split: bool) -> jax.Array:
    """This device's slice along dim 1 of an array that all of `tensor` hold whole, such as positions."""
    if not split or not collectives.live([AXIS]):
        return x_BS
    size = x_BS.shape[1] // collectives.axis_size(AXIS)
    return jax.lax.dynamic_slice_in_dim(x_BS, collectives.axis_index(AXIS) * size, size, axis=1)


def num_kv_heads(query_heads: int, heads: int, kv_heads: int) -> int:
    """How many of all `kv_heads` a device with `query_heads` of all `heads` computes with."""
    return max(1, query_heads * kv_heads // heads)


def own_kv_heads(x_DGK: jax.Array, query_heads: int, heads: int, kv_heads: int) -> jax.Array:
    """The key or value weights of the KV heads that this device's `query_heads` use, heads on dim -2.

    With at least as many KV heads as devices, the weights are cut like the queries' and this is the identity. With
    fewer, every device holds all of them and takes the one its queries belong to, as Megatron replicates them.
    """
    if x_DGK.shape[-2] == num_kv_heads(query_heads, heads, kv_heads):
        return x_DGK
    mine = collectives.axis_index(AXIS) * query_heads // (heads // kv_heads)
    return jax.lax.dynamic_slice_in_dim(x_DGK, mine, 1, axis=-2)


def embed(table_vD: jax.Array, tokens_BS: jax.Array, split: bool, axes: Sequence[str] = (AXIS,)) -> jax.Array:
    """Vocabulary-parallel lookup, [B, S] int32 -> [B, s, D]: each device adds the rows of its block of the table.

    `axes`, here and below, are those that the vocabulary is cut over: `tensor`, and whatever else shares the table.
    """
    if not collectives.live(axes):
        return look_up(table_vD, tokens_BS)
    local = tokens_BS - collectives.place(axes) * table_vD.shape[0]
    mine = (local >= 0) & (local < table_vD.shape[0])
    rows = jnp.where(mine[..., None], look_up(table_vD, jnp.where(mine, local, 0)), 0)
    others = [axis for axis in axes if axis != AXIS]
    # Varying from here on, so that the gradient travels in this dtype, whatever comes next.
    return collectives.varying(collectives.all_sum(leave(rows, split), others), others)


def look_up(table_ND: jax.Array, indices: jax.Array) -> jax.Array:
    """table[indices], [..., D]. Its gradient adds up equal indices in float32, whatever the table's dtype.

    In bfloat16 the gradient of a token that a batch holds a thousand times would stop growing at some 256 of them.
    """
    table_ND = collectives.varying(table_ND, tuple(collectives.varying_axes(indices)))
    return _look_up(table_ND, indices, table_ND.shape[0])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _look_up(table_ND: jax.Array, indices: jax.Array, num_rows: int) -> jax.Array:
    return table_ND[indices]


def _look_up_forward(table_ND: jax.Array, indices: jax.Array, num_rows: int) -> tuple[jax.Array, jax.Array]:
    return table_ND[indices], indices


def _look_up_backward(num_rows: int, indices: jax.Array, d_rows: jax.Array) -> tuple[jax.Array, None]:
    d_table_ND = jnp.zeros((num_rows, d_rows.shape[-1]), jnp.float32).at[indices].add(d_rows.astype(jnp.float32))
    return d_table_ND.astype(d_rows.dtype), None


_look_up.defvjp(_look_up_forward, _look_up_backward)


def logits(x_BSD: jax.Array, table_vD: jax.Array, vocab: int, axes: Sequence[str] = (AXIS,)) -> jax.Array:
    """[B, S, D] -> float32 logits of this device's block, [B, S, v]; entries past `vocab` are padding, -inf."""
    return _without_padding(_products(x_BSD, table_vD), table_vD.shape[0], vocab, axes)


def _products(x_SD: jax.Array, table_vD: jax.Array) -> jax.Array:
    """Of every token with every row of the table, [..., S, v] float32."""
    return jnp.einsum("...sd,vd->...sv", x_SD, table_vD, preferred_element_type=jnp.float32)


def _without_padding(logits_v: jax.Array, rows: int, vocab: int, axes: Sequence[str]) -> jax.Array:
    """-inf past `vocab`, [..., v]."""
    padded = rows * math.prod(map(collectives.axis_size, axes)) != vocab
    return jnp.where(_rows(rows, axes) < vocab, logits_v, -jnp.inf) if padded else logits_v


def cross_entropy(
    x_TD: jax.Array,
    table_vD: jax.Array,
    targets_T: jax.Array,
    weights_T: jax.Array,
    vocab: int,
    axes: Sequence[str] = (AXIS,),
) -> jax.Array:
    """Σ weight x -log softmax(x · tableᵀ)[target], float32 scalar, over a vocabulary cut over `axes`.

    Works through the tokens in chunks and makes the gradients of `x` and `table` in the same pass, so that neither the
    full logits nor their gradient ever exist, and no logit is computed twice.
    """
    return _cross_entropy(x_TD, table_vD, targets_T, weights_T, vocab, tuple(axes))


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _cross_entropy(
    x_TD: jax.Array, table_vD: jax.Array, targets_T: jax.Array, weights_T: jax.Array, vocab: int, axes: tuple[str, ...]
) -> jax.Array:
    def chunk(total: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        x, targets, weights = xs
        return total + _chunk_loss(_products(x, table_vD), targets, weights, vocab, axes), None

    chunks = _chunks(x_TD, targets_T, weights_T)
    total, _ = jax.lax.scan(chunk, _like_loss(x_TD, weights_T, axes), chunks)
    return total


def _cross_entropy_forward(
    x_TD: jax.Array, table_vD: jax.Array, targets_T: jax.Array, weights_T: jax.Array, vocab: int, axes: tuple[str, ...]
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    def chunk(carry: tuple[jax.Array, jax.Array], xs: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
        total, d_table_Dv = carry
        x, targets, weights = xs
        loss, d_products = jax.value_and_grad(_chunk_loss)(_products(x, table_vD), targets, weights, vocab, axes)
        # The matmuls' gradients are written out: they are multiplied in the dtype of `x`, and added up in float32.
        d_products = d_products.astype(x.dtype)
        d_table_Dv += jnp.einsum("td,tv->dv", x, d_products, preferred_element_type=jnp.float32)
        return (total + loss, d_table_Dv), jnp.einsum("tv,vd->td", d_products, table_vD)

    varying = collectives.varying_axes(x_TD) | collectives.varying_axes(table_vD)
    zeros = collectives.varying(jnp.zeros(table_vD.shape[::-1], jnp.float32), tuple(varying))
    chunks = _chunks(x_TD, targets_T, weights_T)
    # Accumulated as [D, v], which XLA's CPU backend multiplies 1.4 times as fast as [v, D].
    (total, d_table_Dv), d_x = jax.lax.scan(chunk, (_like_loss(x_TD, weights_T, axes), zeros), chunks)
    return total, (d_x.reshape(-1, d_x.shape[-1])[: x_TD.shape[0]], d_table_Dv.T.astype(table_vD.dtype))


def _cross_entropy_backward(
    vocab: int, axes: tuple[str, ...], residuals: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    d_x, d_table = residuals
    return d_x * g.astype(d_x.dtype), d_table * g.astype(d_table.dtype), None, None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _chunk_loss(
    products_Tv: jax.Array, targets_T: jax.Array, weights_T: jax.Array, vocab: int, axes: tuple[str, ...]
) -> jax.Array:
    """The loss of a chunk of tokens by what the output matrix makes of them; its gradient is JAX's own.

    All that is added to the loss belongs here: what is logged and what is trained on are this one function.
    """
    logits_Tv = _without_padding(products_Tv, products_Tv.shape[-1], vocab, axes)
    top_T = collectives.all_max(jnp.max(jax.lax.stop_gradient(logits_Tv), axis=-1), axes)
    sum_T = collectives.all_sum(jnp.sum(jnp.exp(logits_Tv - top_T[:, None]), axis=-1), axes)
    hit_Tv = _rows(products_Tv.shape[-1], axes) == targets_T[:, None]
    target_T = collectives.all_sum(jnp.sum(jnp.where(hit_Tv, logits_Tv - top_T[:, None], 0), axis=-1), axes)
    return jnp.sum(weights_T * (jnp.log(sum_T) - target_T))


def _rows(num: int, axes: Sequence[str]) -> jax.Array:
    """The vocabulary entries of this device's block of `num`."""
    return jnp.arange(num) + collectives.place(axes) * num


def _chunks(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Each [T, ...] as [chunks, tokens, ...]. Zeros fill the last chunk; their weight is 0."""
    tokens = arrays[0].shape[0]
    num = -(-tokens // CHUNK_TOKENS)
    size = -(-tokens // num)
    return tuple(_fill(x, num * size).reshape(num, size, *x.shape[1:]) for x in arrays)


def _fill(x: jax.Array, size: int) -> jax.Array:
    return jnp.pad(x, [(0, size - x.shape[0])] + [(0, 0)] * (x.ndim - 1))


def _like_loss(x_TD: jax.Array, weights_T: jax.Array, axes: Sequence[str]) -> jax.Array:
    """A zero with the type of the loss: it varies over the batch's axes, and not over the vocabulary's."""
    varying = (collectives.varying_axes(x_TD) | collectives.varying_axes(weights_T)) - {*axes}
    return collectives.varying(jnp.zeros((), jnp.float32), tuple(varying))
