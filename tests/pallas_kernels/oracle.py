"""Attention in float64 and plain numpy, with its gradients by hand: what every kernel has to agree with.

Shapes as in pallas_kernels.flash.spec: `B` batch, `S` queries, `T` keys, `H` query heads, `G` key heads, `K` head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

EMPTY = -1e30


class Results(NamedTuple):
    """All float64."""

    out: np.ndarray
    """[B, S, H, K]"""
    lse: np.ndarray
    """[B, H, S]"""
    d_q: np.ndarray
    d_k: np.ndarray
    d_v: np.ndarray


def attention(
    q_BSHK: np.ndarray,
    k_BTGK: np.ndarray,
    v_BTGK: np.ndarray,
    d_out_BSHK: np.ndarray,
    d_lse_BHS: np.ndarray,
    *,
    causal: bool = True,
    segments: tuple[np.ndarray, np.ndarray] | None = None,
    alibi_slopes_H: np.ndarray | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    query_offset: int = 0,
    scale: float | None = None,
    kept: DTypeLike = np.float64,
) -> Results:
    """As `pallas_kernels.flash.flash_attention` says; gradients of Σ out · d_out + Σ lse · d_lse.

    Weights, output and gradients are rounded to `kept`, wherever a plain implementation of this dtype has them so.
    """
    q, k, v, d_out = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q_BSHK, k_BTGK, v_BTGK, d_out_BSHK))
    batch, heads, num_queries, head_dim = q.shape

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(kept).astype(np.float64)

    kv_heads, num_keys = k.shape[1:3]
    scale = head_dim**-0.5 if scale is None else scale
    k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))

    distance_ST = query_offset + np.arange(num_queries)[:, None] - np.arange(num_keys)
    seen = np.ones((batch, 1, num_queries, num_keys), bool)
    if causal:
        seen &= distance_ST >= 0
    if window is not None:
        seen &= distance_ST < window
    if segments is not None:
        seen &= (segments[0][:, :, None] == segments[1][:, None, :])[:, None]

    logits, slope = q @ k.swapaxes(2, 3) * scale, scale
    if soft_cap is not None:
        bounded = np.tanh(logits / soft_cap)
        logits, slope = soft_cap * bounded, scale * (1 - bounded**2)
    if alibi_slopes_H is not None:
        logits = logits - np.asarray(alibi_slopes_H, np.float64)[:, None, None] * np.abs(distance_ST)

    highest = np.max(np.where(seen, logits, EMPTY), axis=-1, keepdims=True, initial=EMPTY)
    exp = np.where(seen, np.exp(np.minimum(logits - highest, 0)), 0)
    total = exp.sum(-1, keepdims=True)
    empty = total == 0
    weights = exp / np.where(empty, 1, total)
    out = rounded(rounded(weights) @ v)
    lse = np.where(empty, EMPTY, highest + np.log(np.where(empty, 1, total)))[..., 0]

    mean = (out * d_out).sum(-1) - np.asarray(d_lse_BHS, np.float64)
    d_products = rounded(weights * (d_out @ v.swapaxes(2, 3) - mean[..., None]) * slope)

    def of_key_heads(x_BHTK: np.ndarray) -> np.ndarray:
        return rounded(x_BHTK.reshape(batch, kv_heads, -1, num_keys, head_dim).sum(2).swapaxes(1, 2))

    return Results(
        out.swapaxes(1, 2),
        lse,
        rounded((d_products @ k).swapaxes(1, 2)),
        of_key_heads(d_products.swapaxes(2, 3) @ q),
        of_key_heads(rounded(weights).swapaxes(2, 3) @ d_out),
    )
