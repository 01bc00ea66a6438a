"""Attentions to try: their sizes and options, arrays for them, and how far what a kernel makes of them may be off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.flash import flash_attention
from pallas_kernels.flash.spec import Tile, Tiles
from tests.pallas_kernels import oracle

Attention = Callable[..., tuple[jax.Array, jax.Array]]
TILES = Tiles(*[Tile(32, 32, 4, 2)] * 3)
QUICK = {"xla_backend_optimization_level": 0}
"""XLA's options: compiling is what these tests wait for."""
TOLERANCES = {
    "float32": {"out": 3e-6, "lse": 3e-6, "d_q": 3e-6, "d_k": 3e-6, "d_v": 3e-6},
    "float16": {"out": 7e-4, "lse": 3e-6, "d_q": 2e-3, "d_k": 2e-3, "d_v": 2e-3},
    "bfloat16": {"out": 5e-3, "lse": 3e-6, "d_q": 1e-2, "d_k": 1e-2, "d_v": 1e-2},
}
"""Largest error / largest value, in interpret mode. Log-sum-exp never leaves float32."""


@dataclass(frozen=True)
class Case:
    """One attention. What its arrays hold is drawn by `draw`."""

    queries: int = 70
    keys: int = 70
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    batch: int = 2
    dtype: str = "float32"
    norm: float = 1.0
    """Standard deviation of queries and keys."""
    causal: bool = True
    packing: str | None = None
    """None; "documents", of sorted ids; "shuffled" ids; "strangers", of which some queries meet no key."""
    alibi: bool = False
    window: int | None = None
    soft_cap: float | None = None
    offset: int = 0
    scale: float | None = None
    tiles: Tiles = TILES


@dataclass
class Arrays:
    """What an attention is called with, beside what is static."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    d_out: np.ndarray
    d_lse: np.ndarray
    segments: tuple[np.ndarray, np.ndarray] | None
    alibi_slopes_H: np.ndarray | None
    query_offset: np.ndarray


def draw(case: Case, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    dtype = jnp.dtype(case.dtype)
    q_shape = case.batch, case.queries, case.heads, case.head_dim
    k_shape = case.batch, case.keys, case.kv_heads, case.head_dim

    def normal(shape: tuple[int, ...], deviation: float = 1.0) -> np.ndarray:
        return (deviation * rng.normal(size=shape)).astype(dtype)

    slopes = 2.0 ** -rng.uniform(0, 6, size=case.heads)
    return Arrays(
        q=normal(q_shape, case.norm),
        k=normal(k_shape, case.norm),
        v=normal(k_shape),
        d_out=normal(q_shape),
        d_lse=rng.normal(size=(case.batch, case.heads, case.queries)).astype(np.float32),
        segments=_segments(case, rng),
        alibi_slopes_H=slopes.astype(np.float32) if case.alibi else None,
        query_offset=np.asarray(case.offset, np.int32),
    )


def _segments(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray] | None:
    """Ids of queries are those of the keys that they stand at, where there are such."""
    if case.packing is None:
        return None
    shares = rng.dirichlet(np.ones(4), size=case.batch)  # no two samples are alike
    ids = np.stack([rng.choice(4, size=case.keys, p=share) for share in shares]).astype(np.int32)
    if case.packing != "shuffled":
        ids.sort(axis=1)
    places = np.clip(case.offset + np.arange(case.queries), 0, case.keys - 1)
    of_queries = ids[:, places]
    if case.packing == "strangers":
        of_queries = np.where(rng.random(of_queries.shape) < 0.3, 9, of_queries).astype(np.int32)
    return of_queries, ids


def run(case: Case, arrays: Arrays, attention: Attention = flash_attention) -> oracle.Results:
    """Output, log-sum-exp and the three gradients, as the kernels make them, in float64."""
    with_gradients = compiled(attention, case.causal, case.window, case.soft_cap, case.scale, case.tiles)
    results = with_gradients(**asdict(arrays))
    return oracle.Results(*(np.asarray(x, np.float64) for x in results))


@cache
def compiled(attention: Attention, causal: bool, window: Any, soft_cap: Any, scale: Any, tiles: Tiles) -> Any:
    """One jitted function for all cases that differ in nothing static; segments, slopes and offset are traced."""

    @partial(jax.jit, compiler_options=QUICK)
    def with_gradients(
        q: Any, k: Any, v: Any, d_out: Any, d_lse: Any, segments: Any, alibi_slopes_H: Any, query_offset: Any
    ) -> Any:
        def of_inputs(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            return attention(
                q,
                k,
                v,
                causal=causal,
                segments=segments,
                alibi_slopes_H=alibi_slopes_H,
                window=window,
                soft_cap=soft_cap,
                query_offset=query_offset,
                scale=scale,
                tiles=tiles,
                interpret=True,
            )

        results, pull = jax.vjp(of_inputs, q, k, v)
        return *results, *pull((d_out, d_lse))

    return with_gradients


def expected(case: Case, arrays: Arrays, kept: Any = np.float64) -> oracle.Results:
    """The same from the oracle; `kept` is its own."""
    return oracle.attention(
        arrays.q,
        arrays.k,
        arrays.v,
        arrays.d_out,
        arrays.d_lse,
        causal=case.causal,
        segments=arrays.segments,
        alibi_slopes_H=arrays.alibi_slopes_H,
        window=case.window,
        soft_cap=case.soft_cap,
        query_offset=int(arrays.query_offset),
        scale=case.scale,
        kept=kept,
    )


def errors(got: oracle.Results, wanted: oracle.Results) -> dict[str, float]:
    """Largest error / largest value of each result; log-sum-exp of what sees nothing must be -1e30 and counts apart."""
    empty = wanted.lse == oracle.EMPTY
    lse = np.where(empty & (got.lse == np.float32(oracle.EMPTY)), 0, got.lse)
    pairs = {**got._asdict(), "lse": lse}, {**wanted._asdict(), "lse": np.where(empty, 0, wanted.lse)}
    return {name: relative(pairs[0][name], pairs[1][name]) for name in oracle.Results._fields}


def allowed(case: Case, arrays: Arrays, wanted: oracle.Results) -> dict[str, float]:
    """How large those errors may be.

    In float32, in proportion where scores beyond 16 have larger errors themselves. In 16 bits, up to twice the error of
    a plain implementation that rounds what it keeps, as FlashAttention's tests have it.
    """
    tolerances = TOLERANCES[case.dtype]
    if case.dtype == "float32":
        heads = np.repeat(arrays.k, case.heads // case.kv_heads, axis=2)
        scores = np.einsum("bshk,bthk->bhst", arrays.q, heads) * (case.scale or case.head_dim**-0.5)
        return {result: value * max(1, np.abs(scores).max() / 16) for result, value in tolerances.items()}
    plain = errors(expected(case, arrays, jnp.dtype(case.dtype)), wanted) | {"lse": 0}
    return {result: max(value, 2 * plain[result]) for result, value in tolerances.items()}


def relative(got: np.ndarray, wanted: np.ndarray) -> float:
    """Infinite where something is not finite, or should be 0 and is not."""
    error, largest = float(np.max(np.abs(got - wanted))), float(np.max(np.abs(wanted)))
    if not np.isfinite(error) or (largest == 0 and error > 0):
        return float("inf")
    return error / largest if largest else 0.0
