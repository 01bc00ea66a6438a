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
Decode = Callable[[np.ndarray, Cache, int, int], tuple[jax.Array, Cache]]


def empty(config: ModelConfig, kv_heads: int | None = None) -> Cache:
    shape = (config.layers, 1, config.context, kv_heads or config.num_kv_heads, config.dim_per_head)
    return Cache(jnp.zeros(shape), jnp.zeros(shape))


def decoder(config: ModelConfig) -> Decode:
    weights = weights_of(config)
    return jax.jit(
        lambda tokens, cache, offset, last: Decoder(config).decode(weights, whole, tokens, cache, offset, last)
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_token_by_token(family: str) -> None:
    config = CONFIGS[family]
    decode, cache = decoder(config), empty(config)
    expected = log_probabilities(config, weights_of(config), TOKENS)
    for place, token in enumerate(TOKENS):
        logits, cache = decode(TOKENS[None, place : place + 1], cache, place, 0)
        assert logits.shape == (1, config.vocab), token
        np.testing.assert_allclose(jax.nn.log_softmax(logits[0]), expected[place], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_padded_prompt_then_token_by_token(family: str) -> None:
    """As generation does it: what the padding wrote into the cache is never seen, and written over."""
    config = CONFIGS[family]
    decode = decoder(config)
    expected = log_probabilities(config, weights_of(config), TOKENS)
    prompt = np.where(np.arange(10) < 6, TOKENS, 7)[None].astype(np.int32)
    logits, cache = decode(prompt, empty(config), 0, 5)
    np.testing.assert_allclose(jax.nn.log_softmax(logits[0]), expected[5], rtol=1e-5, atol=1e-5)
    for place in range(6, 10):
        logits, cache = decode(TOKENS[None, place : place + 1], cache, place, 0)
        np.testing.assert_allclose(jax.nn.log_softmax(logits[0]), expected[place], rtol=1e-5, atol=1e-5)


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
        logits, cache = Decoder(config).decode(leaves, whole, tokens[:, :8], cache, 0, 7)
        more, _ = Decoder(config).decode(leaves, whole, tokens[:, 8:9], cache, 8, 0)
        return jnp.concatenate([logits, more])

    run = manual(mesh, local, ({n: layout.spec for n, layout in layouts.items()}, P()), P(None, "tensor"))
    logits = np.asarray(run({n: layouts[n].store(jnp.asarray(x)) for n, x in weights.items()}, TOKENS[None]))
    assert (logits[:, config.vocab :] == -np.inf).all()
    expected = log_probabilities(config, weights, TOKENS)[7:9]
    np.testing.assert_allclose(jax.nn.log_softmax(logits)[:, : config.vocab], expected, rtol=1e-5, atol=1e-5)
