"""Attention against plain loops in float64, for every option and its gradients."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.reference import attention

BATCH, HEADS, HEAD_DIM = 2, 4, 8
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0, 0], [1] * 10], np.int32)

CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "grouped": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "alibi": {"alibi_slopes_H": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)},
    "alibi grouped": {"kv_heads": 2, "alibi_slopes_H": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)},
    "window of 1": {"window": 1},
    "window": {"window": 3},
    "soft cap": {"soft_cap": 0.5},
    "packed": {"segments": (SEGMENTS, SEGMENTS)},
    "one query in a cache": {"queries": 1, "query_offset": 6},
    "a few queries in a cache": {"queries": 3, "query_offset": 4, "window": 4},
    "queries before all keys": {"query_offset": -3},
    "packed, offset": {"queries": 4, "query_offset": 3, "segments": (SEGMENTS[:, 3:7], SEGMENTS)},
    "everything": {
        "kv_heads": 2,
        "alibi_slopes_H": np.array([1, 0.5, 0.25, 0.125], np.float32),
        "window": 4,
        "soft_cap": 2.0,
        "segments": (SEGMENTS, SEGMENTS),
    },
}


def inputs(queries: int = 10, keys: int = 10, kv_heads: int = HEADS) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    shapes = (BATCH, queries, HEADS, HEAD_DIM), *[(BATCH, keys, kv_heads, HEAD_DIM)] * 2
    return tuple(2 * rng.normal(size=shape).astype(np.float32) for shape in shapes)


def options_of(case: str) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    options = dict(CASES[case])
    sizes = {name: options.pop(name) for name in ("queries", "kv_heads") if name in options}
    return inputs(**sizes), options


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    segments: tuple[np.ndarray, np.ndarray] | None = None,
    alibi_slopes_H: np.ndarray | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    query_offset: int = 0,
) -> np.ndarray:
    """One query of one head of one sample at a time, from the definition."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    group = q.shape[2] // k.shape[2]
    for b, i, h in np.ndindex(*q.shape[:3]):
        place = query_offset + i
        seen, logits = [], []
        for j in range(k.shape[1]):
            if j > place or (window and place - j >= window):
                continue
            if segments is not None and segments[0][b, i] != segments[1][b, j]:
                continue
            logit = q[b, i, h] @ k[b, j, h // group] / math.sqrt(q.shape[3])
            if soft_cap:
                logit = soft_cap * math.tanh(logit / soft_cap)
            if alibi_slopes_H is not None:
                logit -= float(alibi_slopes_H[h]) * (place - j)
            seen.append(j)
            logits.append(logit)
        if seen:
            weights = np.exp(np.array(logits) - max(logits))
            out[b, i, h] = weights @ v[b, seen, h // group] / weights.sum()
    return out


@pytest.mark.parametrize("case", CASES)
def test_output(case: str) -> None:
    (q, k, v), options = options_of(case)
    out = jax.jit(lambda q, k, v: attention(q, k, v, **options))(q, k, v)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, reference(q, k, v, **options), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_gradients(case: str) -> None:
    """Along a random direction of each input, against a central difference of the float64 loops."""
    arrays, options = options_of(case)
    rng = np.random.default_rng(1)
    seed = rng.normal(size=arrays[0].shape).astype(np.float32)
    gradients = jax.jit(jax.grad(lambda *a: jnp.sum(attention(*a, **options) * seed), (0, 1, 2)))(*arrays)
    for n, gradient in enumerate(gradients):
        assert np.isfinite(gradient).all()
        direction = rng.normal(size=arrays[n].shape)
        step = 1e-5
        moved = [
            [a + sign * step * direction if i == n else a.astype(np.float64) for i, a in enumerate(arrays)]
            for sign in (1, -1)
        ]
        high, low = ((reference(*a, **options) * seed).sum() for a in moved)
        expected = (high - low) / (2 * step)
        scale = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert (gradient * direction).sum() == pytest.approx(expected, abs=1e-5 * scale + 1e-5)


def test_a_query_that_sees_no_key_gives_0_and_no_gradient() -> None:
    q, k, v = inputs(queries=2)
    options = {"query_offset": -1}  # the first stands before every key
    out = attention(q, k, v, **options)
    np.testing.assert_array_equal(out[:, 0], 0)
    assert np.all(out[:, 1] != 0)
    d_q, d_k, d_v = jax.grad(lambda *a: jnp.sum(attention(*a, **options)[:, 0] ** 2), (0, 1, 2))(q, k, v)
    for gradient in (d_q, d_k, d_v):
        np.testing.assert_array_equal(gradient, 0)


def test_keys_that_are_not_seen_change_nothing_whatever_they_hold() -> None:
    q, k, v = inputs()
    bad_k, bad_v = k.copy(), v.copy()
    bad_k[:, 7:], bad_v[:, 7:] = 1e30, 1e30
    np.testing.assert_array_equal(attention(q, bad_k, bad_v)[:, :7], attention(q, k, v)[:, :7])


def test_the_offset_may_be_traced() -> None:
    q, k, v = inputs(queries=2)
    traced = jax.jit(lambda offset: attention(q, k, v, query_offset=offset, window=3))(jnp.int32(5))
    np.testing.assert_allclose(traced, attention(q, k, v, query_offset=5, window=3), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", ["causal", "grouped", "everything"])
def test_bfloat16_keeps_logits_and_softmax_in_float32(case: str) -> None:
    arrays, options = options_of(case)
    halves = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
    out = attention(*halves, **options)
    assert out.dtype == jnp.bfloat16
    expected = reference(*(np.asarray(x, np.float32) for x in halves), **options)
    # Rounding of the weights and of the output: 2**-8 each, of values up to the largest.
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=2**-7 * np.abs(halves[2]).max())


def test_logits_too_large_for_float32s_exponential_are_no_trouble() -> None:
    q, k, v = inputs()
    out = attention(100 * q, k, v)
    np.testing.assert_allclose(out, reference(100 * q, k, v), rtol=1e-3, atol=1e-3)
