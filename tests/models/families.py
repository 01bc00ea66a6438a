"""What the tests of the decoder share: three small families, random weights for them, and their log probabilities."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.config import ModelConfig
from models.decoder import Decoder
from models.inputs import Batch

_SMALL: dict[str, Any] = {"layers": 2, "hidden": 12, "vocab": 11, "context": 10, "init_std": 0.3}
_GPT: dict[str, Any] = {"norm": "layernorm", "activation": "gelu", "bias": True, "tied": True}
FAMILIES = {
    "gpt2": ModelConfig(**_SMALL, **_GPT, heads=3, positions="learned"),
    "bloom": ModelConfig(**_SMALL, **_GPT, heads=3, positions="alibi", embedding_norm=True),
    "llama": ModelConfig(**_SMALL, heads=2, ffn=20, norm_epsilon=1e-6),
    "llama grouped": ModelConfig(**_SMALL, heads=6, kv_heads=2, head_dim=4, rope_theta=100.0),
}
Weights = dict[str, np.ndarray]


def weights_of(config: ModelConfig) -> Weights:
    """Float32 weights, none of them 0 or 1: an unused bias or scale would show."""
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=declaration.shape) * 0.3 + declaration.init.value).astype(np.float32)
        for name, declaration in Decoder(config).declarations.items()
    }


def whole(_: str, leaf: jax.Array) -> jax.Array:
    """`fetch` where the leaves are the weights."""
    return leaf


def batch_of(
    tokens: np.ndarray,
    *,
    targets: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    documents: tuple[int, ...] | None = None,
) -> Batch:
    """A batch of [B, S] tokens: one document a row, or `documents` of these lengths, as packing makes it."""
    lengths = documents or (tokens.shape[1],)
    segments = np.repeat(np.arange(1, 1 + len(lengths)), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    return Batch(
        tokens=jnp.asarray(tokens),
        targets=jnp.asarray(np.roll(tokens, -1, axis=1) if targets is None else targets),
        segments=jnp.asarray(np.broadcast_to(segments, tokens.shape), jnp.int32),
        positions=jnp.asarray(np.broadcast_to(positions, tokens.shape), jnp.int32),
        weights=jnp.asarray(np.ones(tokens.shape) if weights is None else weights, jnp.float32),
        samples=jnp.arange(len(tokens), dtype=jnp.uint32),
    )


def log_probabilities(config: ModelConfig, weights: Weights, tokens_S: np.ndarray) -> np.ndarray:
    """[S, V], by the training loss alone: minus the loss of each possible target at each place."""
    length = len(tokens_S)

    def token_loss(place: jax.Array, target: jax.Array) -> jax.Array:
        batch = batch_of(tokens_S[None])._replace(
            targets=jnp.full((1, length), target), weights=jnp.eye(length)[place][None]
        )
        return Decoder(config).loss(weights, whole, batch, None, None)

    every = jax.vmap(jax.vmap(token_loss, (None, 0)), (0, None))
    return -np.asarray(jax.jit(every)(jnp.arange(length), jnp.arange(config.vocab)))
