"""Flash attention as one differentiable function. It never sees the mesh: it is called on one device's heads."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from pallas_kernels.flash.backward import backward
from pallas_kernels.flash.forward import forward
from pallas_kernels.flash.spec import Arrays, Spec, Tile, Tiles
from pallas_kernels.names import ATTENTION, LOG_SUM_EXP

SMALL = Tiles(*[Tile(32, 32, 4, 2)] * 3)


def flash_attention(
    q_BSHK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    *,
    causal: bool = True,
    segments: tuple[jax.Array, jax.Array] | None = None,
    alibi_slopes_H: jax.Array | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    query_offset: jax.Array | int = 0,
    scale: float | None = None,
    tiles: Tiles = SMALL,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Softmax attention, [B, S, H, K] in the dtype of `q`, and log-sum-exp of the logits, [B, H, S] float32.

    bfloat16, float16 or float32; any lengths and head dim. H is a multiple of G, and each of the G key heads serves
    H / G neighbouring query heads. Query i stands at key position `query_offset` + i. It sees keys of its own segment,
    where `segments` = ([B, S], [B, T]) int32 are given; if `causal`, those at or before it; and those less than
    `window` before it. `soft_cap` bounds logits as cap x tanh(logits / cap), then ALiBi adds -slope x |distance|.
    `scale` is K^-1/2 unless given. A query that sees no key gives 0, and a log-sum-exp of -1e30. A key that is not seen
    changes nothing, as long as what it holds is finite and so are its products.

    Both results can be differentiated, with regard to `q`, `k` and `v`; twice the same input gives the same bits.
    """
    scale = q_BSHK.shape[-1] ** -0.5 if scale is None else scale
    spec = Spec(scale, causal, window, soft_cap, tiles, interpret)
    slopes = None if alibi_slopes_H is None else alibi_slopes_H.astype(jnp.float32)
    return _flash(spec, Arrays(q_BSHK, k_BTGK, v_BTGK, segments, slopes, jnp.asarray(query_offset, jnp.int32)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _flash(spec: Spec, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
    return forward(spec, arrays)


Residuals = tuple[Arrays, jax.Array, jax.Array]


def _flash_forward(spec: Spec, arrays: Arrays) -> tuple[tuple[jax.Array, jax.Array], Residuals]:
    out, lse = forward(spec, arrays)
    out, lse = checkpoint_name(out, ATTENTION), checkpoint_name(lse, LOG_SUM_EXP)
    return (out, lse), (arrays, out, lse)


def _flash_backward(spec: Spec, residuals: Residuals, gradients: tuple[jax.Array, jax.Array]) -> tuple[Arrays]:
    arrays, out, lse = residuals
    d_out, d_lse = gradients
    products = out.astype(jnp.float32) * d_out.astype(jnp.float32)
    delta = jnp.sum(products, axis=-1).swapaxes(1, 2) - d_lse
    d_q, d_k, d_v = backward(spec, arrays, lse, delta, d_out)
    return (Arrays(d_q, d_k, d_v, None, None, None),)  # type: ignore[arg-type]


_flash.defvjp(_flash_forward, _flash_backward)
