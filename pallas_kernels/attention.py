"""Attention: one public function on one device's heads; it never sees the mesh.

Shapes: `B` batch, `S` query positions, `T` key positions, `H` query heads, `G` key and value heads (`H` is a multiple
of `G`), `R` = H / G queries per key head, `K` head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


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
    q_BSGRK = q_BSHK.reshape(batch, num_queries, kv_heads, heads // kv_heads, head_dim)
    logits = jnp.einsum("bsgrk,btgk->bgrst", q_BSGRK, k_BTGK, preferred_element_type=jnp.float32)
    logits *= head_dim**-0.5
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)

    distance_ST = query_offset + jnp.arange(num_queries)[:, None] - jnp.arange(num_keys)[None, :]
    if alibi_slopes_H is not None:
        slopes_GR11 = alibi_slopes_H.astype(jnp.float32).reshape(kv_heads, -1, 1, 1)
        logits -= slopes_GR11 * distance_ST
    seen = distance_ST >= 0
    if window is not None:
        seen &= distance_ST < window
    if segments is not None:
        query_segments, key_segments = segments
        seen = seen & (query_segments[:, None, None, :, None] == key_segments[:, None, None, None, :])

    logits = jnp.where(seen, logits, jnp.finfo(jnp.float32).min)
    weights = jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
    weights = jnp.where(seen, weights, 0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = (weights / jnp.where(total == 0, 1, total)).astype(v_BTGK.dtype)
    out_BSGRK = jnp.einsum("bgrst,btgk->bsgrk", weights, v_BTGK)
    return out_BSGRK.reshape(q_BSHK.shape).astype(q_BSHK.dtype)
