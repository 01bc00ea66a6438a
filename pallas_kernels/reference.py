"""Attention as XLA does it: batched matmuls, and scores of every query and key in memory.

Shapes: `B` batch, `S` query positions, `T` key positions, `H` query heads, `G` key and value heads (`H` is a multiple
of `G`), `R` = H / G queries per key head, `K` head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from pallas_kernels.names import ATTENTION, WEIGHTS


def attention(
    q_BSHK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    *,
    segments: tuple[jax.Array, jax.Array] | None = None,
    alibi_slopes_H: jax.Array | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    query_offset: jax.Array | int = 0,
) -> jax.Array:
    """Causal softmax attention, [B, S, H, K] in the dtype of `q`; logits and softmax in float32.

    Query i stands at key position `query_offset` + i and sees the keys at or before it: of its own segment, where
    `segments` = ([B, S], [B, T]) int32 are given, and at most `window` of them, itself included. ALiBi adds
    -slope x distance to a head's logits (Press et al. 2022); `soft_cap` bounds them as cap x tanh(logits / cap).
    A query that sees no key gives 0.
    """
    batch, num_queries, heads, head_dim = q_BSHK.shape
    num_keys, kv_heads = k_BTGK.shape[1:3]
    # Plain batched matrix products, the queries of one key head as rows of one matrix: others are slow on CPU.
    q_BGNK = q_BSHK.transpose(0, 2, 1, 3).reshape(batch, kv_heads, -1, head_dim)
    k_BGKT, v_BGTK = k_BTGK.transpose(0, 2, 3, 1), v_BTGK.transpose(0, 2, 1, 3)
    logits = jnp.matmul(q_BGNK, k_BGKT, preferred_element_type=jnp.float32) * head_dim**-0.5
    logits = logits.reshape(batch, kv_heads, -1, num_queries, num_keys)
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)

    distance_ST = query_offset + jnp.arange(num_queries)[:, None] - jnp.arange(num_keys)[None, :]
    if alibi_slopes_H is not None:
        logits -= alibi_slopes_H.astype(jnp.float32).reshape(kv_heads, -1, 1, 1) * distance_ST
    seen = distance_ST >= 0
    if window is not None:
        seen &= distance_ST < window
    if segments is not None:
        seen = seen & (segments[0][:, None, None, :, None] == segments[1][:, None, None, None, :])

    out_BGNK = _attend(logits, seen, v_BGTK)
    out = out_BGNK.reshape(batch, heads, num_queries, head_dim).transpose(0, 2, 1, 3).astype(q_BSHK.dtype)
    return checkpoint_name(out, ATTENTION)


@jax.custom_vjp
def _attend(logits_BGRST: jax.Array, seen: jax.Array, v_BGTK: jax.Array) -> jax.Array:
    """softmax(logits where `seen`) · v, [B, G, R·S, K] in the dtype of `v`; 0 for a query that sees nothing.

    Keeps the softmax and nothing on the way to it. The backward pass adds up weight x gradient over the keys as output
    x gradient over the head dim, which is the same and shorter (FlashAttention-2, Dao 2023, section 3.1).
    """
    return _attend_forward(logits_BGRST, seen, v_BGTK)[0]


def _attend_forward(
    logits_BGRST: jax.Array, seen: jax.Array, v_BGTK: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    float32 = jnp.finfo(jnp.float32)
    masked = jnp.where(seen, logits_BGRST, -jnp.inf)
    exp = jnp.exp(masked - jnp.maximum(jnp.max(masked, axis=-1, keepdims=True), float32.min))
    weights_BGRST = exp / jnp.maximum(jnp.sum(exp, axis=-1, keepdims=True), float32.tiny)
    weights_BGRST = checkpoint_name(weights_BGRST, WEIGHTS)
    out_BGNK = jnp.matmul(_rows(weights_BGRST).astype(v_BGTK.dtype), v_BGTK)
    return out_BGNK, (weights_BGRST, v_BGTK, out_BGNK)


def _attend_backward(
    residuals: tuple[jax.Array, jax.Array, jax.Array], d_out_BGNK: jax.Array
) -> tuple[jax.Array, None, jax.Array]:
    weights_BGRST, v_BGTK, out_BGNK = residuals
    weights_BGNT = _rows(weights_BGRST)
    d_weights_BGNT = jnp.matmul(d_out_BGNK, v_BGTK.mT, preferred_element_type=jnp.float32)
    mean_BGN1 = jnp.sum(out_BGNK.astype(jnp.float32) * d_out_BGNK.astype(jnp.float32), axis=-1, keepdims=True)
    d_logits_BGNT = weights_BGNT * (d_weights_BGNT - mean_BGN1)
    d_v_BGTK = jnp.matmul(weights_BGNT.astype(v_BGTK.dtype).mT, d_out_BGNK)
    return d_logits_BGNT.reshape(weights_BGRST.shape), None, d_v_BGTK


_attend.defvjp(_attend_forward, _attend_backward)


def _rows(x_BGRST: jax.Array) -> jax.Array:
    """[B, G, R, S, T] -> [B, G, R·S, T]"""
    return x_BGRST.reshape(*x_BGRST.shape[:2], -1, x_BGRST.shape[-1])
