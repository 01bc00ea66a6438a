"""Text from a trained model: one compiled program, whatever the length of the prompt or of what follows.

The prompt, padded to the model's context, goes through the blocks at once and fills a cache of keys and values; then
one token at a time. The blocks are the training model's own, on the training mesh; decoding keeps the sequence whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from models.decoder import STACK, Leaves, Through
from models.float32 import Float32
from models.inputs import Cache, Inputs
from sharding import collectives, tensor
from sharding.mesh import AXES
from sharding.pipeline.relay import relay
from trainer.errors import ConfigError
from trainer.step import Arrays

if TYPE_CHECKING:
    from trainer.program import Program
    from trainer.trainer import Trainer


Carry = tuple[jax.Array, jax.Array, jax.Array, Cache]  # tokens so far, how many, logits of the next, cache


TEMPERATURE = Float32(ge=0, le=1e30)
"""Times the noise it is still finite."""


class Sampling(NamedTuple):
    """How the next token is chosen; arrays, so that changing them compiles nothing."""

    temperature: jax.typing.ArrayLike  # float32; 0: the likeliest
    top_k: jax.typing.ArrayLike  # int32: among that many likeliest
    seed: jax.typing.ArrayLike  # uint32
    end: jax.typing.ArrayLike  # int32: stop after this token; -1: never


def generate(
    trainer: Trainer,
    parameters: Arrays,
    prompt: str,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
) -> str:
    """See Trainer.generate."""
    _require(max_tokens >= 0, f"max_tokens={max_tokens}: use 0 or more")
    held = TEMPERATURE.becomes(temperature)
    wanted = f"use 0 for the likeliest token, or more, up to {TEMPERATURE.le:g}"
    _require(TEMPERATURE.allows(temperature), f"temperature={temperature}: {wanted}{(held and f'; {held}') or ''}")
    _require(top_k is None or top_k >= 1, f"top_k={top_k}: use 1 or more, or None for the whole vocabulary")
    _require(0 <= seed < 2**32, f"seed={seed}: use one from 0 to 2**32 - 1")
    _require(_is_text(prompt), "the prompt is not UTF-8 text; convert it first")
    tokenizer, model = trainer.tokenizer, trainer.config.model
    ids = tokenizer.encode_prompt(prompt)
    if len(ids) >= model.context:
        raise ConfigError(
            f"the prompt has {len(ids)} tokens, and the model's context holds {model.context}; use at most "
            f"{model.context - 1}, so that there is room for an answer"
        )
    tokens = np.zeros((1, model.context), np.int32)
    tokens[0, : len(ids)] = ids
    sampling = Sampling(
        temperature=np.float32(temperature),
        top_k=np.int32(model.vocab if top_k is None else min(top_k, model.vocab)),
        seed=np.uint32(seed),
        end=np.int32(tokenizer.eod),
    )
    last = min(model.context, len(ids) + max_tokens)
    out, length = trainer.program.generate(parameters, tokens, np.int32(len(ids)), np.int32(last), sampling)
    written = np.asarray(out)[0, len(ids) : int(length)]
    return prompt + tokenizer.decode(written[written != tokenizer.eod])


def _is_text(prompt: str) -> bool:
    """False for bytes that a shell passed on without being able to decode them."""
    return not any("\ud800" <= character <= "\udfff" for character in prompt)


def generator(program: Program) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """(parameters, tokens [1, context], prompt length, last length, Sampling) -> (tokens, length), jitted."""

    def generate(
        parameters: Arrays, tokens: jax.Array, length: jax.Array, last: jax.Array, sampling: Sampling
    ) -> tuple[jax.Array, jax.Array]:
        step = program.train_step
        leaves = step.open(parameters)
        config = program.config.model
        queries = program.layouts["layers.attention.query.weight"].block_shape[2]
        kv_heads = tensor.num_kv_heads(queries, config.heads, config.num_kv_heads)
        shape = (program.stages.num_layers_held, *tokens.shape, kv_heads, config.dim_per_head)
        empty = collectives.varying(jnp.zeros(shape, step.zero.compute), AXES)

        through = _through_stages(program, leaves) if program.pipeline else None

        def decode(
            tokens: jax.Array, cache: Cache, offset: jax.Array | int, at: jax.Array | int
        ) -> tuple[jax.Array, Cache]:
            logits, cache = program.model.decode(leaves, step.fetch, tokens, cache, offset, at, through)
            return collectives.gather(logits, program.model.vocab_axes, 1)[:, : config.vocab], cache

        def more(carry: Carry) -> jax.Array:
            tokens, at, _, _ = carry
            return (at < last) & ((at == length) | (tokens[0, at - 1] != sampling.end))

        def append(carry: Carry) -> Carry:
            tokens, at, logits, cache = carry
            token = collectives.all_max(_sample(logits, at, sampling), AXES)
            tokens = jax.lax.dynamic_update_slice(tokens, token[:, None], (0, at))
            logits, cache = decode(token[:, None], cache, at, 0)
            return tokens, at + 1, collectives.varying(logits, AXES), cache

        logits, cache = decode(tokens, Cache(empty, empty), 0, length - 1)
        start = (tokens, length, collectives.varying(logits, AXES), cache)
        return jax.lax.while_loop(more, append, start)[:2]

    scalar = PartitionSpec()
    return program.forward(generate, (scalar,) * 4, (scalar, scalar))


def _through_stages(program: Program, leaves: Leaves) -> Through:
    """What takes activations through the layers of all stages."""
    stack = {name: leaf for name, leaf in leaves.items() if name.startswith(STACK)}
    model, fetch, stages = program.model, program.train_step.fetch, program.stages

    def through(x: jax.Array, inputs: Inputs, cache: Cache) -> tuple[jax.Array, Cache]:
        def blocks(leaves: Leaves, numbers: jax.Array, x: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
            return model.blocks(leaves, fetch, x, inputs, numbers, cache=cache, missing=stages.missing)

        return relay(blocks, stages, stack, x, cache)

    return through


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ConfigError(otherwise)


def _sample(logits_BV: jax.Array, at: jax.Array, sampling: Sampling) -> jax.Array:
    """The token at place `at`, int32 [B]: a function of (seed, place, logits), whatever the mesh."""
    ranked = jnp.sort(logits_BV, axis=-1)
    vocab = logits_BV.shape[-1]
    least = jnp.take(ranked, vocab - jnp.clip(sampling.top_k, 1, vocab), axis=-1)[:, None]
    key = jax.random.fold_in(jax.random.key(sampling.seed), at)
    noise = jax.random.gumbel(key, logits_BV.shape) * sampling.temperature
    return jnp.argmax(jnp.where(logits_BV >= least, logits_BV, -jnp.inf) + noise, axis=-1).astype(jnp.int32)
