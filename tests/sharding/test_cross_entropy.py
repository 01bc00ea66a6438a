"""Vocabulary-parallel cross entropy: right to rounding, in chunks, and never with the full logits in memory."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from numpy.typing import DTypeLike

from sharding import collectives, tensor
from sharding.layout import plan
from sharding.mesh import AXES
from tests.sharding.regions import collectives_of, equations, make, manual

DIM = 16
Problem = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor, "CHUNK_TOKENS", 4)


def problem(tokens: int, vocab: int, dtype: DTypeLike = np.float32) -> Problem:
    """x, table, targets and weights, a third of which are 0; every vocabulary entry at the border of a block is hit."""
    rng = np.random.default_rng(tokens * vocab)
    x, table = (np.asarray(rng.normal(size=(n, DIM)), dtype) for n in (tokens, vocab))
    targets = np.resize(np.concatenate([[0, vocab - 1], rng.integers(0, vocab, tokens)]), tokens).astype(np.int32)
    return x, table, targets, (rng.random(tokens) * (rng.random(tokens) > 0.33)).astype(np.float32)


def reference(x: np.ndarray, table: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Loss and its gradients by x and table, in float64."""
    x, table, weights = (a.astype(np.float64) for a in (x, table, weights))
    logits = x @ table.T
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    rows = np.arange(len(x))
    loss, p = -(weights * log_p[rows, targets]).sum(), np.exp(log_p)
    p[rows, targets] -= 1
    d_logits = p * weights[:, None]
    return loss, d_logits @ table, d_logits.T @ x


def measured(given: Problem, devices: int, data: int = 1) -> tuple[np.ndarray, ...]:
    """The same from the function under test, its vocabulary over `devices` and its tokens over `data`."""
    x, table, targets, weights = given
    vocab = len(table)
    layout = plan(table.shape, ("vocab", "embed"), {"tensor": devices})

    def local(x: jax.Array, table: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, ...]:
        x, table = (collectives.varying(a, AXES) for a in (x, table))
        loss, (d_x, d_table) = jax.value_and_grad(
            lambda x, table: tensor.cross_entropy(x, table, targets, weights, vocab), (0, 1)
        )(x, table)
        # Each device's gradient by the whole x is its block's part of it.
        return (
            collectives.all_sum(loss, ["data"]),
            collectives.all_sum(d_x, ["tensor"]),
            collectives.all_sum(d_table, ["data"]),
        )

    tokens = P("data")
    run = manual(
        make(tensor=devices, data=data), local, (tokens, P("tensor"), tokens, tokens), (P(), tokens, P("tensor"))
    )
    loss, d_x, d_table = run(x, layout.store(jnp.asarray(table)), targets, weights)
    np.testing.assert_array_equal(np.asarray(d_table[vocab:], np.float32), 0, err_msg="the padding has a gradient")
    return loss, d_x, d_table[:vocab]


def assert_close(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...], tolerance: float) -> None:
    for name, a, b in zip(("loss", "d_x", "d_table"), found, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float64), b, rtol=tolerance, atol=tolerance * np.abs(b).max(), err_msg=name
        )


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("vocab", [5, 37])
def test_loss_and_gradients(devices: int, vocab: int) -> None:
    # With 5 entries on 4 devices, the last holds nothing but padding.
    given = problem(24, vocab)
    assert_close(measured(given, devices), reference(*given), 2e-6)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 31])
def test_any_number_of_tokens(tokens: int) -> None:
    given = problem(tokens, 20)
    assert_close(measured(given, 2), reference(*given), 2e-6)


@pytest.mark.usefixtures("small_chunks")
def test_tokens_and_vocabulary_both_cut() -> None:
    given = problem(26, 21)
    assert_close(measured(given, 2, data=2), reference(*given), 2e-6)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("devices", [1, 2])
def test_bfloat16_in_float32_out(devices: int) -> None:
    given = problem(200, 37, jnp.bfloat16)
    loss, d_x, d_table = measured(given, devices)
    assert (loss.dtype, d_x.dtype, d_table.dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    expected = reference(*given)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)  # the logits are float32
    assert_close((loss, d_x, d_table), expected, 2**-6)


def test_large_logits_do_not_overflow() -> None:
    x, table, targets, weights = problem(8, 10)
    given = (x * 1e3, table, targets, weights)
    assert_close(measured(given, 2), reference(*given), 1e-4)


@pytest.mark.parametrize("devices", [1, 2])
def test_no_counted_token_is_no_loss_and_no_gradient(devices: int) -> None:
    x, table, targets, weights = problem(8, 10)
    for value in measured((x, table, targets, 0 * weights), devices):
        np.testing.assert_array_equal(value, 0)


@pytest.mark.usefixtures("small_chunks")
def test_the_gradient_is_scaled_by_what_follows() -> None:
    x, table, targets, weights = problem(9, 10)
    loss = partial(tensor.cross_entropy, targets_T=targets, weights_T=weights, vocab=10)
    plain = jax.grad(loss, (0, 1))(jnp.asarray(x), jnp.asarray(table))
    scaled = jax.grad(lambda *a: 3 * loss(*a), (0, 1))(jnp.asarray(x), jnp.asarray(table))
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(3 * a, b, rtol=1e-6)


def slope(given: Problem, devices: int, along: tuple[np.ndarray, np.ndarray], step: float = 0.02) -> float:
    """Of the loss as x and the table move along a direction, by two losses beside each other."""
    x, table, *rest = given
    ahead, behind = (
        float(measured((x + s * along[0], table + s * along[1], *rest), devices)[0]) for s in (step, -step)
    )
    return (ahead - behind) / (2 * step)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_the_gradient_is_that_of_the_loss_whatever_is_added_to_it(
    devices: int, z_loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the square of the log partition function (PaLM, Chowdhery et al. 2022, section 5)."""
    given = problem(10, 21)
    plain, chunk_loss = float(measured(given, devices)[0]), tensor._chunk_loss

    def with_z_loss(
        products_Tv: jax.Array, targets_T: jax.Array, weights_T: jax.Array, vocab: int, axes: tuple[str, ...]
    ) -> jax.Array:
        padded = tensor._without_padding(products_Tv, products_Tv.shape[-1], vocab, axes)
        log_z = jnp.log(collectives.all_sum(jnp.sum(jnp.exp(padded), axis=-1), axes))
        loss = chunk_loss(products_Tv, targets_T, weights_T, vocab, axes)
        return loss + z_loss * jnp.sum(weights_T * jnp.square(log_z))

    monkeypatch.setattr(tensor, "_chunk_loss", with_z_loss)
    loss, d_x, d_table = measured(given, devices)
    assert (float(loss) > 1.1 * plain) == (z_loss > 0)
    rng = np.random.default_rng(1)
    along = tuple(rng.normal(size=a.shape).astype(np.float32) / 10 for a in given[:2])
    assert slope(given, devices, along) == pytest.approx(np.vdot(d_x, along[0]) + np.vdot(d_table, along[1]), rel=2e-3)


@pytest.mark.parametrize("tokens", [2048, 2053, 2049], ids=["power of two", "prime", "one more"])
def test_memory_and_time_do_not_depend_on_how_the_tokens_divide(tokens: int) -> None:
    vocab = 50257
    x, table = jax.ShapeDtypeStruct((tokens, 8), jnp.float32), jax.ShapeDtypeStruct((vocab, 8), jnp.float32)
    targets, weights = (jax.ShapeDtypeStruct((tokens,), dtype) for dtype in (jnp.int32, jnp.float32))

    def both(x: jax.Array, table: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, ...]:
        return jax.grad(lambda x, table: tensor.cross_entropy(x, table, targets, weights, vocab), (0, 1))(x, table)

    program = list(equations(jax.make_jaxpr(both)(x, table, targets, weights)))
    assert max(v.aval.size for e in program for v in e.outvars) <= tensor.CHUNK_TOKENS * vocab, (
        "the full logits are twice that"
    )
    (scan,) = [e for e in program if e.primitive.name == "scan"]
    assert scan.params["length"] <= tokens / tensor.CHUNK_TOKENS + 1


def test_each_chunk_exchanges_three_numbers_a_token_and_no_logits() -> None:
    given = problem(16, 8)

    def local(x: jax.Array, table: jax.Array) -> jax.Array:
        x = collectives.varying(x, ["tensor"])
        return jax.grad(lambda x: tensor.cross_entropy(x, table, given[2], given[3], 8))(x)

    run = manual(make(tensor=2), local, (P(), P("tensor")), P("tensor"))
    assert collectives_of(run, given[0], given[1]) == [("pmax", "float32"), *[("psum_invariant", "float32")] * 2]
    sums = [
        e.invars[0].aval.size
        for e in equations(jax.make_jaxpr(run)(given[0], given[1]))
        if e.primitive.name in ("pmax", "psum_invariant")
    ]
    assert sums == [16, 16, 16]
