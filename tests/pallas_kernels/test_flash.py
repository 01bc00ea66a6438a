"""Flash attention's kernels, interpreted, against float64: every option, their products, and what has gone wrong with
such kernels elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec

from pallas_kernels.flash import flash_attention
from pallas_kernels.flash.spec import Tile, Tiles
from pallas_kernels.names import ATTENTION, LOG_SUM_EXP
from tests.pallas_kernels import oracle
from tests.pallas_kernels.cases import QUICK, Arrays, Case, allowed, compiled, draw, errors, expected, run
from tests.sharding.regions import make

EVERYTHING = Case(packing="documents", alibi=True, window=20, soft_cap=2.0)
BIDIRECTIONAL = Case(causal=False, packing="documents", alibi=True)
UNEQUAL = Tiles(Tile(32, 16, 4, 2), Tile(16, 32, 4, 2), Tile(64, 16, 4, 2))

CASES: dict[str, Case] = {
    # Lengths are no multiples of blocks, which made garbage in jax's own kernel (jax#23819, jax#27224); nor are they
    # always equal (jax#24491).
    "causal": Case(),
    "large scores": Case(norm=3.0),
    "queries far behind all keys": Case(offset=500),
    "queries before all keys": Case(offset=-500),
    "some queries before all keys": Case(offset=-20),
    "offset of a block": Case(offset=32),
    "everything": EVERYTHING,
    "everything, offset": replace(EVERYTHING, offset=33),
    "everything, negative offset": replace(EVERYTHING, offset=-40),
    "everything, shuffled ids": replace(EVERYTHING, packing="shuffled"),
    "everything, queries without a key": replace(EVERYTHING, packing="strangers"),
    "everything, bfloat16": replace(EVERYTHING, dtype="bfloat16"),
    "everything, bfloat16, large scores": replace(EVERYTHING, dtype="bfloat16", norm=4.0),
    "bfloat16": Case(dtype="bfloat16"),
    "bfloat16, scores of up to 100": Case(dtype="bfloat16", norm=5.0),
    "float16": Case(dtype="float16", packing="documents", soft_cap=20.0),
    "float16, large scores": Case(dtype="float16", packing="documents", soft_cap=20.0, norm=5.0),
    "bidirectional, packed": BIDIRECTIONAL,
    "bidirectional, queries without a key": replace(BIDIRECTIONAL, packing="strangers"),
    "bidirectional, window, alibi": Case(causal=False, window=17, alibi=True),
    "bidirectional, window, alibi, offset": Case(causal=False, window=17, alibi=True, offset=-30),
    "few queries, many keys": Case(queries=5, keys=100, offset=95),
    "few queries, many keys, in the middle": Case(queries=5, keys=100, offset=40),
    "many queries, few keys": Case(queries=97, keys=33, causal=False, kv_heads=1),
    "one of each": Case(queries=1, keys=1, kv_heads=4),
    "window of one": Case(window=1, scale=0.5),
    "tiles of unequal sides": Case(tiles=UNEQUAL, packing="documents"),
    "head dim of 24": Case(head_dim=24, heads=2, alibi=True),
    "head dim of 80": Case(head_dim=80, heads=2, batch=1, dtype="bfloat16"),
    "head dim of 256": Case(head_dim=256, heads=1, kv_heads=1, batch=1),
}


@pytest.mark.parametrize("name", CASES)
def test_output_log_sum_exp_and_gradients(name: str) -> None:
    check(CASES[name])


def check(case: Case, number: int = 0) -> None:
    arrays = draw(case, number)
    wanted = expected(case, arrays)
    found, limits = errors(run(case, arrays), wanted), allowed(case, arrays, wanted)
    assert all(found[result] <= limits[result] for result in found), (case, found, limits)


# What differs between these is traced or of few shapes, so that all share a handful of compiled programs.
KINDS = [EVERYTHING, BIDIRECTIONAL, replace(EVERYTHING, dtype="bfloat16")]


@seed(0)
@settings(max_examples=60, deadline=None, database=None)
@given(
    kind=st.sampled_from(KINDS),
    packing=st.sampled_from(["documents", "shuffled", "strangers"]),
    offset=st.integers(-100, 100),
    norm=st.sampled_from([0.01, 1.0, 3.0]),
    number=st.integers(0, 10**6),
)
def test_any_segments_offset_and_values(kind: Case, packing: str, offset: int, norm: float, number: int) -> None:
    check(replace(kind, packing=packing, offset=offset, norm=norm), number)


@pytest.mark.parametrize("case", [Case(), EVERYTHING], ids=["causal", "everything"])
def test_keys_that_are_not_seen_change_nothing_whatever_finite_they_hold(case: Case) -> None:
    """What one document holds does not leak into another: jax#23349, maxtext#4478."""
    case = replace(case, packing="documents")
    arrays = draw(case)
    before = run(case, arrays)
    assert arrays.segments is not None
    last = arrays.segments[1] == arrays.segments[1].max()
    arrays.k[last], arrays.v[last] = 1e15, -1e15
    after = run(case, arrays)
    others = ~last[0]
    np.testing.assert_array_equal(after.out[0, others], before.out[0, others])
    np.testing.assert_array_equal(after.lse[0, :, others], before.lse[0, :, others])
    for gradient in ("d_q", "d_k", "d_v"):
        np.testing.assert_array_equal(getattr(after, gradient)[0, others], getattr(before, gradient)[0, others])


def test_a_nan_is_seen_in_its_own_row_and_in_no_other() -> None:
    case = Case()
    arrays = draw(case)
    arrays.q[0, 40, 1] = np.nan
    out = run(case, arrays).out
    nan = np.isnan(out)
    assert nan[0, 40, 1].all()
    assert nan.sum() == case.head_dim


def test_a_query_that_sees_nothing_gives_0_and_gets_no_gradient() -> None:
    """A mask of one finite value spreads its weight over all keys instead."""
    case = replace(Case(packing="strangers"), offset=-20)
    arrays = draw(case)
    wanted, got = expected(case, arrays), run(case, arrays)
    empty = wanted.lse == oracle.EMPTY
    assert 0.3 < empty.mean() < 0.9
    np.testing.assert_array_equal(got.lse == np.float32(oracle.EMPTY), empty)
    for result in (got.out, got.d_q):
        np.testing.assert_array_equal(result.swapaxes(1, 2)[empty], 0)


def test_gradients_of_large_bfloat16_scores_are_not_those_of_rounded_scores() -> None:
    """Scores that were cast to bfloat16 on the way gave wrong gradients: jax PR#19301."""
    case = Case(dtype="bfloat16", norm=5.0)
    arrays = draw(case)
    wanted = expected(case, arrays)
    assert wanted.lse.max() > 64  # where bfloat16 has steps of a half
    found = errors(run(case, arrays), wanted)
    assert found["d_q"] < 1e-2
    assert found["d_k"] < 1e-2


def test_scores_that_no_exponential_can_hold_are_no_trouble() -> None:
    case = Case(norm=30.0)
    arrays = draw(case)
    wanted = expected(case, arrays)
    assert wanted.lse.max() > 1000
    found = errors(run(case, arrays), wanted)
    assert max(found.values()) < 1e-3


@pytest.mark.parametrize("case", [Case(), EVERYTHING], ids=["causal", "everything"])
def test_twice_the_same_gives_the_same_bits(case: Case) -> None:
    """As cuDNN's backward does only if it is asked: llm.c PR#652."""
    arrays = draw(case)
    for one, other in zip(run(case, arrays), run(case, arrays), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_size_of_blocks_is_of_no_consequence() -> None:
    """Backward was wrong for blocks other than the default ones: jax PR#25647."""
    case = Case(packing="documents")
    arrays = draw(case)
    found = errors(run(case, arrays), run(replace(case, tiles=UNEQUAL), arrays))
    assert max(found.values()) < 2e-6


def test_parts_merged_by_their_log_sum_exp_are_the_whole_with_its_gradients() -> None:
    """As ring attention does, which needs the gradient of log-sum-exp: jax's wrapper of cuDNN drops it."""
    case = Case(norm=2.0)
    arrays = draw(case)
    arrays.d_lse[:] = 0
    half = case.keys // 2

    @partial(jax.jit, compiler_options=QUICK)
    def merged(q: Any, k: Any, v: Any, d_out: Any) -> Any:
        def out(q: Any, k: Any, v: Any) -> jax.Array:
            parts = [
                flash_attention(q, k[:, part], v[:, part], query_offset=offset, tiles=case.tiles, interpret=True)
                for part, offset in ((slice(None, half), 0), (slice(half, None), -half))
            ]
            lse = jnp.stack([lse for _, lse in parts])
            weights = jnp.exp(lse - jax.nn.logsumexp(lse, axis=0)).swapaxes(2, 3)
            return sum(out * weight[..., None] for (out, _), weight in zip(parts, weights, strict=True))

        result, pull = jax.vjp(out, q, k, v)
        return result, *pull(d_out)

    wanted = expected(case, arrays)
    whole = (wanted.out, wanted.d_q, wanted.d_k, wanted.d_v)
    for one, other in zip(merged(arrays.q, arrays.k, arrays.v, arrays.d_out), whole, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6 * np.abs(other).max())


@pytest.mark.parametrize(("kept", "forwards"), [((ATTENTION, LOG_SUM_EXP), 1), ((ATTENTION,), 2), ((), 2)])
def test_a_policy_that_keeps_output_and_log_sum_exp_runs_forward_once(kept: tuple[str, ...], forwards: int) -> None:
    case = Case()
    arrays = draw(case)

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(*kept))
    def layer(q: Any, k: Any, v: Any) -> jax.Array:
        return jnp.sum(jnp.sin(flash_attention(q, k, v, tiles=case.tiles, interpret=True)[0]))

    program = jax.make_jaxpr(jax.grad(layer, (0, 1, 2)))(arrays.q, arrays.k, arrays.v).jaxpr
    (backward,) = [
        equation.params["jaxpr"]
        for equation in program.eqns
        if "jaxpr" in equation.params and "policy" in equation.params
    ]
    calls = Counter(kernels(program) + kernels(backward))
    assert calls == {"flash_forward": forwards, "flash_d_queries": 1, "flash_d_keys": 1}


def kernels(program: Jaxpr) -> list[str]:
    """Those of a program whose results are used: XLA leaves out the others."""
    used = {id(x) for equation in program.eqns for x in equation.invars} | {id(x) for x in program.outvars}
    return [
        equation.params["name"]
        for equation in program.eqns
        if equation.primitive.name == "pallas_call" and any(id(x) in used for x in equation.outvars)
    ]


@pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])
def test_heads_over_devices_give_what_one_device_gives_and_nothing_is_sent(checked: bool) -> None:
    """Collectives turned up in the backward pass of a kernel in a manual region: jax#21855.

    In a region that checks over which axes values differ, the kernels run on plain arrays.
    """
    case = EVERYTHING
    arrays = draw(case)
    heads, rows, logs = (PartitionSpec(*axes) for axes in (("data", None, "tensor"), ("data",), ("data", "tensor")))
    specs = Arrays(heads, heads, heads, heads, logs, (rows, rows), PartitionSpec("tensor"), PartitionSpec())  # type: ignore[arg-type]
    local = compiled(flash_attention, case.causal, case.window, case.soft_cap, case.scale, case.tiles).__wrapped__
    names, inputs = vars(arrays).keys(), tuple(vars(arrays).values())
    sharded = jax.jit(
        jax.shard_map(
            lambda *arrays: local(**dict(zip(names, arrays, strict=True))),
            mesh=make(data=2, tensor=2),
            in_specs=tuple(vars(specs).values()),
            out_specs=(heads, logs, heads, heads, heads),
            check_vma=checked,
        ),
        compiler_options=QUICK,
    )
    program = sharded.lower(*inputs).compile()
    for one, other in zip(program(*inputs), run(case, arrays), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    text = program.as_text() or ""
    assert not [word for word in ("all-reduce", "all-gather", "all-to-all", "collective-permute") if word in text]


def test_only_what_was_differentiated_has_a_gradient() -> None:
    """`segments`, slopes and offset are constants: none of them stops `jax.grad` of the rest."""
    case = EVERYTHING
    arrays = draw(case)

    def total(q: Any) -> jax.Array:
        out, _ = flash_attention(
            q,
            arrays.k,
            arrays.v,
            segments=arrays.segments,
            alibi_slopes_H=arrays.alibi_slopes_H,
            query_offset=jnp.int32(3),
            tiles=case.tiles,
            interpret=True,
        )
        return jnp.sum(out)

    assert jax.eval_shape(jax.grad(total), arrays.q).shape == arrays.q.shape
