"""Decoding with a cache gives the logits of the training model's forward pass, token by token, on any mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from models.config import ModelConfig
from models.decoder import Decoder
from models.inputs import Cache
from sharding import collectives
from sharding.layout import plan
from sharding.mesh import AXES
from tests.models.families import FAMILIES, log_probabilities, weights_of, whole
from tests.sharding.regions import make, manual

TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 10, 0], np.int32)
CONFIGS = FAMILIES | {
    "windowed": dataclasses.replace(FAMILIES["llama grouped"], window=3, soft_cap=2.0),
    "one key head": dataclasses.replace(FAMILIES["llama grouped"], kv_heads=1),
}
Decode = Callable[..., tuple[jax.Array, Cache]]
FIRST = np.zeros(1, np.int32)
"""Where the text of the only row begins."""


def empty(config: ModelConfig, kv_heads: int | None = None, rows: int = 1, places: int = 10) -> Cache:
    shape = (config.layers, rows, places, kv_heads or config.num_kv_heads, config.dim_per_head)
    return Cache(jnp.zeros(shape), jnp.zeros(shape))


def decoder(config: ModelConfig, num: int = 1) -> Decode:
    weights = weights_of(config)
    return jax.jit(
        lambda tokens, cache, offset, first: Decoder(config).decode(weights, whole, tokens, cache, offset, first, num)
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_token_by_token(family: str) -> None:
    config = CONFIGS[family]
    decode, cache = decoder(config), empty(config)
    expected = log_probabilities(config, weights_of(config), TOKENS)
    for place, token in enumerate(TOKENS):
        logits, cache = decode(TOKENS[None, place : place + 1], cache, place, FIRST)
        assert logits.shape == (1, 1, config.vocab), token
        np.testing.assert_allclose(jax.nn.log_softmax(logits[0, 0]), expected[place], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", CONFIGS)
def test_rows_of_any_length_side_by_side_in_chunks_then_token_by_token(family: str) -> None:
    """As generation does it: each row ends where the others end, and what stands before it is not seen."""
    config = CONFIGS[family]
    rows = [TOKENS[:7], TOKENS[3:5], TOKENS[2:8]]
    expected = [log_probabilities(config, weights_of(config), row) for row in rows]
    tokens = np.stack([np.append(np.full(9 - len(row), 7), row) for row in rows]).astype(np.int32)
    first = np.array([9 - len(row) for row in rows], np.int32)
    chunk, one, cache = decoder(config, num=3), decoder(config), empty(config, rows=3, places=12)
    found = []
    for place in (0, 3):
        logits, cache = chunk(tokens[:, place : place + 3], cache, place, first)
        found.append(logits)
    for place in (6, 7, 8):
        logits, cache = one(tokens[:, place : place + 1], cache, place, first)
        found.append(logits)
    said = jax.nn.log_softmax(jnp.concatenate(found, axis=1))
    for row, wanted in enumerate(expected):
        np.testing.assert_allclose(said[row, first[row] :], wanted, rtol=1e-5, atol=1e-5, err_msg=f"row {row}")


@pytest.mark.parametrize(
    ("family", "tensor"),
    [("gpt2", 3), ("bloom", 3), ("llama", 2), ("llama grouped", 2), ("llama grouped", 6), ("one key head", 3)],
)
def test_on_a_tensor_mesh(family: str, tensor: int) -> None:
    """11 vocabulary entries divide over none of these, and 2 key heads are fewer than 6 devices."""
    config = CONFIGS[family]
    mesh = make(tensor=tensor)
    weights = weights_of(config)
    declarations = Decoder(config).declarations
    layouts = {name: plan(d.shape, d.axes, dict(mesh.shape)) for name, d in declarations.items()}
    kv_heads = max(1, config.num_kv_heads // tensor)

    def local(weights: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        leaves = {name: collectives.varying(weight, AXES) for name, weight in weights.items()}
        cache = jax.tree.map(lambda x: collectives.varying(x, AXES), empty(config, kv_heads))
        first = jnp.zeros(1, jnp.int32)
        logits, cache = Decoder(config).decode(leaves, whole, tokens[:, :8], cache, 0, first, 2)
        more, _ = Decoder(config).decode(leaves, whole, tokens[:, 8:9], cache, 8, first, 1)
        return jnp.concatenate([logits, more], axis=1)[0]

    run = manual(mesh, local, ({n: layout.spec for n, layout in layouts.items()}, P()), P(None, "tensor"))
    logits = np.asarray(run({n: layouts[n].store(jnp.asarray(x)) for n, x in weights.items()}, TOKENS[None]))
    assert (logits[:, config.vocab :] == -np.inf).all()
    expected = log_probabilities(config, weights, TOKENS)[6:9]
    np.testing.assert_allclose(jax.nn.log_softmax(logits)[:, : config.vocab], expected, rtol=1e-5, atol=1e-5)
