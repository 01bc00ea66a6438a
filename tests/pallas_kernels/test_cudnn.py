"""cuDNN is asked for what the reference does, or says that it cannot. What it is asked for is done by XLA here."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import cudnn, reference

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 12, 4, 8


def inputs(kv_heads: int = HEADS, length: int = LENGTH) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = (BATCH, LENGTH, HEADS, HEAD_DIM), *[(BATCH, length, kv_heads, HEAD_DIM)] * 2
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


@pytest.fixture
def by_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = jax.nn.dot_product_attention

    def asked(*arrays: jax.Array, implementation: str, **options: Any) -> jax.Array:
        assert implementation == "cudnn"
        return ask(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", asked)


@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.usefixtures("by_xla")
def test_it_is_asked_for_what_the_reference_does(window: int | None, kv_heads: int) -> None:
    arrays = inputs(kv_heads)

    def results(attend: Any) -> Any:
        out, pull = jax.vjp(partial(attend, window=window), *arrays)
        return out, *pull(jnp.cos(out))

    for found, expected in zip(results(cudnn.attention), results(reference.attention), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segments": (jnp.ones((BATCH, LENGTH), jnp.int32),) * 2}, "has no segments"),
        ({"alibi_slopes_H": jnp.ones(HEADS)}, "has no alibi_slopes_H"),
        ({"soft_cap": 2.0}, "has no soft_cap"),
        ({"query_offset": 3}, "queries that stand elsewhere"),
        ({"query_offset": jnp.int32(0)}, "queries that stand elsewhere"),
    ],
)
def test_what_it_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cudnn.attention(*inputs(), **options)


def test_sequences_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="queries that stand elsewhere"):
        cudnn.attention(*inputs(length=LENGTH + 1))


@pytest.mark.parametrize("error", [RuntimeError("cuDNN is not detected."), NotImplementedError("The head dim is 200.")])
def test_what_jax_has_against_it_is_told_before_a_step_is_traced(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(jax.nn, "dot_product_attention", fails)
    with pytest.raises(ValueError, match=f"cannot be used: {str(error)[:-1]}; pip install nvidia-cudnn-cu13"):
        cudnn.check(64, "bfloat16")
