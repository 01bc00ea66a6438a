"""Packed documents do not see each other: what one says changes nothing for the next, in any family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import pytest

from models.config import ModelConfig
from models.decoder import Decoder
from models.inputs import Batch
from tests.models.families import FAMILIES, batch_of, weights_of, whole

CONFIGS = FAMILIES | {"windowed": dataclasses.replace(FAMILIES["llama"], window=4)}
A = np.array([[3, 1, 4, 1]], np.int32)
B = np.array([[5, 9, 2, 6, 8, 10]], np.int32)
OTHER_A = np.array([[7, 0, 0, 2]], np.int32)
B_ONLY = np.array([[0, 0, 0, 0, 1, 1, 1, 1, 1, 0]], np.float32)


def loss_of(config: ModelConfig) -> Callable[[Batch], jax.Array]:
    weights = weights_of(config)
    return jax.jit(lambda batch: Decoder(config).loss(weights, whole, batch, None, None))


def packed(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> Batch:
    return batch_of(
        np.concatenate([first, second], axis=1), weights=weights, documents=(first.shape[1], second.shape[1])
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_another_document_before_changes_nothing(family: str) -> None:
    loss = loss_of(CONFIGS[family])
    assert loss(packed(A, B, B_ONLY)) == loss(packed(OTHER_A, B, B_ONLY))  # to the last bit
    assert loss(packed(A, B, 1 - B_ONLY)) != loss(packed(OTHER_A, B, 1 - B_ONLY)), "the loss sees nothing at all"


@pytest.mark.parametrize("family", CONFIGS)
def test_a_document_behind_another_is_as_it_is_alone(family: str) -> None:
    loss = loss_of(CONFIGS[family])
    alone = loss(batch_of(B, weights=B_ONLY[:, 4:]))
    np.testing.assert_allclose(loss(packed(A, B, B_ONLY)), alone, rtol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama"])
def test_without_borders_the_same_tokens_do_see_each_other(family: str) -> None:
    """The test above would pass with a model that looks at nothing."""
    loss = loss_of(CONFIGS[family])
    joined = [batch_of(np.concatenate([first, B], axis=1), weights=B_ONLY) for first in (A, OTHER_A)]
    assert loss(joined[0]) != loss(joined[1])


@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama"])
def test_rows_do_not_see_each_other(family: str) -> None:
    loss = loss_of(CONFIGS[family])
    second_only = np.array([[0] * 4, [1] * 4], np.float32)
    with_a, with_other = (batch_of(np.concatenate([first, B[:, :4]]), weights=second_only) for first in (A, OTHER_A))
    assert loss(with_a) == loss(with_other)


@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama"])
def test_padding_changes_nothing(family: str) -> None:
    loss = loss_of(CONFIGS[family])
    batch = packed(B, A, np.array([[1] * 5 + [0] * 5], np.float32))
    padded = batch._replace(segments=batch.segments.at[:, 6:].set(0), positions=batch.positions.at[:, 6:].set(0))
    np.testing.assert_array_equal(loss(padded), loss(padded._replace(tokens=padded.tokens.at[:, 6:].set(0))))
    np.testing.assert_allclose(loss(padded), loss(batch_of(B, weights=np.array([[1] * 5 + [0]]))), rtol=1e-5)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in ("bloom", "windowed") else pytest.mark.sweep) for name in CONFIGS]
)
def test_over_whole_sequences_borders_are_nothing(family: str) -> None:
    """The loss and its gradients are those of the same tokens as one document, to the last bit."""
    config = CONFIGS[family]
    weights = weights_of(config)

    def loss(documents: bool, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        decoder = Decoder(config, documents=documents)
        return jax.jit(jax.value_and_grad(lambda weights: decoder.loss(weights, whole, batch, None, None)))(weights)

    borders, one = packed(A, B, B_ONLY), batch_of(np.concatenate([A, B], axis=1), weights=B_ONLY)
    jax.tree.map(np.testing.assert_array_equal, loss(False, borders), loss(False, one))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), loss(False, borders), loss(True, one))
    assert loss(False, borders)[0] != loss(True, borders)[0]
