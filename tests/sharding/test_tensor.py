"""Tensor parallelism's pieces: the same numbers as on one device, whatever the block each device holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from sharding import collectives, tensor
from sharding.layout import plan
from tests.sharding.regions import collectives_of, equations, everywhere, make, manual

DEVICES = [1, 2, 3, 4]


def stored(table: np.ndarray, devices: int) -> jax.Array:
    """A table padded so that its vocabulary divides."""
    return plan(table.shape, ("vocab", "embed"), {"tensor": devices}).store(jnp.asarray(table))


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
def test_embedding_rows_and_their_gradient(devices: int, split: bool) -> None:
    vocab, dim = 13, 4
    rng = np.random.default_rng(0)
    table = rng.normal(size=(vocab, dim)).astype(np.float32)
    tokens = np.concatenate([np.arange(vocab), rng.integers(0, vocab, 11)]).reshape(2, 12).astype(np.int32)
    weights = rng.normal(size=(2, 12, dim)).astype(np.float32)

    def loss(table: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = tensor.embed(table, tokens, split)
        return jnp.sum(rows * weights), rows

    sequence = P(None, "tensor") if split else P()
    run = manual(make(tensor=devices), jax.grad(loss, has_aux=True), (P("tensor"), sequence), (P("tensor"), sequence))
    gradient, rows = run(stored(table, devices), weights)
    np.testing.assert_array_equal(rows, table[tokens])
    expected = np.zeros_like(table, np.float64)
    np.add.at(expected, tokens, weights)
    np.testing.assert_allclose(gradient[:vocab], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(gradient[vocab:], 0)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_frequent_tokens_gradient_does_not_saturate_in_bfloat16(devices: int) -> None:
    tokens = jnp.zeros((1, 4096), jnp.int32)

    def loss(table: jax.Array) -> jax.Array:
        return jnp.sum(tensor.embed(table, tokens, True).astype(jnp.float32))

    run = manual(make(tensor=devices), jax.grad(loss), P("tensor"), P("tensor"))
    gradient = run(jnp.ones((8, 2), jnp.bfloat16))
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradient[0], 4096)
    np.testing.assert_array_equal(gradient[1:], 0)


def test_a_replicated_table_looked_up_by_varying_indices_gets_the_gradient_of_all() -> None:
    def gradient(table: jax.Array, indices: jax.Array) -> jax.Array:
        return jax.grad(lambda table: jnp.sum(tensor.look_up(table, indices)))(table)

    run = manual(make(data=4), gradient, (P(), P("data")), P())
    np.testing.assert_array_equal(run(jnp.ones((3, 1)), jnp.array([0, 0, 2, 0])).ravel(), [3, 0, 1])


def test_enter_and_leave_are_undone_by_the_sum_over_devices() -> None:
    x = np.random.default_rng(1).normal(size=(2, 8, 3)).astype(np.float32)
    mesh = make(tensor=4)
    both = manual(mesh, lambda x: tensor.leave(tensor.enter(x, True), True), P(None, "tensor"), P(None, "tensor"))
    np.testing.assert_allclose(both(x), 4 * x, rtol=1e-6)
    kinds = [kind for kind, _ in collectives_of(both, x)]
    assert kinds == ["all_gather", "reduce_scatter"]
    decoding = manual(
        mesh, lambda x: tensor.leave(collectives.varying(tensor.enter(x, False), ["tensor"]), False), P(), P()
    )
    np.testing.assert_allclose(decoding(x), 4 * x, rtol=1e-6)
    assert [kind for kind, _ in collectives_of(decoding, x)] == ["psum_invariant"]


@pytest.mark.parametrize("devices", [1, 4])
def test_the_slices_of_a_sequence_in_order(devices: int) -> None:
    x = np.arange(16).reshape(2, 8)
    run = manual(make(tensor=devices), lambda: tensor.slice_of_sequence(jnp.asarray(x), True), (), P(None, "tensor"))
    np.testing.assert_array_equal(run(), x)
    assert tensor.slice_of_sequence(x, False) is x


@pytest.mark.parametrize(("heads", "kv_heads", "devices"), [(8, 8, 4), (8, 4, 4), (8, 2, 4), (8, 1, 4), (4, 2, 1)])
def test_each_query_meets_the_key_head_of_its_group(heads: int, kv_heads: int, devices: int) -> None:
    layout = plan((kv_heads, 1), ("kv_heads", "head_dim"), {"tensor": devices})
    weights = jnp.arange(float(kv_heads))[:, None]

    def own(weights: jax.Array) -> jax.Array:
        mine = tensor.own_kv_heads(weights, heads // devices, heads, kv_heads)
        queries = heads // devices
        return collectives.varying(jnp.repeat(mine[:, 0], queries // mine.shape[0]), ["tensor"])

    found = manual(make(tensor=devices), own, layout.spec, P("tensor"))(weights)
    np.testing.assert_array_equal(found, np.arange(heads) // (heads // kv_heads))


def test_logits_past_the_vocabulary_are_minus_infinity() -> None:
    table = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    x = np.ones((1, 2, 3), np.float32)
    run = manual(
        make(tensor=4), lambda x, table: tensor.logits(x, table, 5), (P(), P("tensor")), P(None, None, "tensor")
    )
    logits = np.asarray(run(x, stored(table, 4)))
    np.testing.assert_allclose(logits[..., :5], x @ table.T, rtol=1e-5)
    assert (logits[..., 5:] == -np.inf).all()
    assert logits.shape[-1] == 8


def test_on_one_device_tensor_parallelism_adds_no_equation() -> None:
    x = jnp.ones((1, 4, 3))
    pieces = (
        lambda: tensor.enter(x, True),
        lambda: tensor.leave(x, True),
        lambda: tensor.leave(x, False),
        lambda: tensor.slice_of_sequence(x, True),
        lambda: tensor.own_kv_heads(x, 8, 8, 4),
    )
    for piece in pieces:
        assert list(equations(jax.make_jaxpr(piece)())) == []


def test_devices_agree_on_nothing_by_accident() -> None:
    places = everywhere(make(tensor=4), lambda: jnp.asarray(collectives.axis_index("tensor")))
    np.testing.assert_array_equal(places.ravel(), range(4))
