"""cuDNN's flash attention, by `jax.nn.dot_product_attention`: a library of NVIDIA's, with kernels for each of its GPUs.

Nothing here knows how it works. It takes bfloat16 and float16, causal attention of sequences to themselves, windows and
grouped heads; its gradients are the same to the bit twice only under `--xla_gpu_exclude_nondeterministic_ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from pallas_kernels.names import ATTENTION, LOG_SUM_EXP

Core = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Queries, keys and values -> output, as `attention` has them."""


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
    """As `pallas_kernels.reference.attention`, in bfloat16 or float16, without what has None or 0 here for default.

    Raises:
        ValueError: it is asked for segments, ALiBi, a soft cap, or queries that stand elsewhere than their keys.
    """
    _refuse(segments=segments, alibi_slopes_H=alibi_slopes_H, soft_cap=soft_cap)
    if not isinstance(query_offset, int) or query_offset or q_BSHK.shape[1] != k_BTGK.shape[1]:
        raise ValueError("cuDNN takes sequences to themselves; use the reference for queries that stand elsewhere")
    return _attention(partial(_library, window), q_BSHK, k_BTGK, v_BTGK)


def traced(q_BSHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, **options: Any) -> jax.Array:
    """Stands for `attention` where a step is traced and never run: jax traces the other only where cuDNN is."""
    return _attention(_opaque, q_BSHK, k_BTGK, v_BTGK)


def check(head_dim: int, dtype: str) -> None:
    """Asks jax whether cuDNN is there and takes this head dim on the GPU that is there, if any.

    Raises:
        ValueError: with what jax says.
    """
    one = jax.ShapeDtypeStruct((1, 8, 1, head_dim), dtype)
    try:
        jax.eval_shape(partial(_library, None), one, one, one)
    except (RuntimeError, NotImplementedError) as error:
        raise ValueError(
            f"attention.implementation=cudnn cannot be used: {str(error).rstrip('.')}; pip install nvidia-cudnn-cu13 "
            "where it is missing, or use attention.implementation=pallas"
        ) from error


def _refuse(**options: Any) -> None:
    if given := [name for name, value in options.items() if value is not None]:
        raise ValueError(f"cuDNN has no {', '.join(given)}; use pallas or the reference")


def _library(window: int | None, q_BSHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array) -> jax.Array:
    before = None if window is None else (window - 1, 0)  # besides the query's own key
    return jax.nn.dot_product_attention(
        q_BSHK, k_BTGK, v_BTGK, is_causal=True, local_window_size=before, implementation="cudnn"
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(core: Core, q_BSHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array) -> jax.Array:
    """`core`, that names what it leaves for backward: a policy that keeps it never runs it again."""
    return core(q_BSHK, k_BTGK, v_BTGK)


def _forward(core: Core, *inputs: jax.Array) -> tuple[jax.Array, Any]:
    out, pull = jax.vjp(core, *inputs)
    named = checkpoint_name(out, ATTENTION)

    def name(left: jax.Array) -> jax.Array:
        if left is out:
            return named
        return checkpoint_name(left, LOG_SUM_EXP) if left.dtype == jnp.float32 else left

    return named, jax.tree.map(name, pull)


def _backward(core: Core, pull: Any, d_out: jax.Array) -> tuple[jax.Array, ...]:
    return pull(d_out)


_attention.defvjp(_forward, _backward)


@jax.custom_vjp
def _opaque(q_BSHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array) -> jax.Array:
    """What cuDNN takes, gives and leaves for backward, without what it does."""
    return _opaque_forward(q_BSHK, k_BTGK, v_BTGK)[0]


def _opaque_forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    batch, length, heads, _ = q.shape
    out, lse = _kernel("cudnn_forward", _like(q), _like(q, (batch, heads, length), jnp.float32))(q, k, v)
    return out, (q, k, v, out, lse)


def _opaque_backward(left: tuple[jax.Array, ...], d_out: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(_kernel("cudnn_backward", *map(_like, left[:3]))(*left, d_out))


_opaque.defvjp(_opaque_forward, _opaque_backward)


def _kernel(name: str, *results: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    return pl.pallas_call(lambda *_: None, out_shape=results, name=name)


def _like(x: jax.Array, shape: tuple[int, ...] | None = None, dtype: Any = None) -> jax.ShapeDtypeStruct:
    """The type of an array that differs over the mesh axes that `x` differs over."""
    manual: Any = jax.typeof(x).manual_axis_type
    return jax.ShapeDtypeStruct(x.shape if shape is None else shape, dtype or x.dtype, manual_axis_type=manual)
