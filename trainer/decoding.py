"""Programs that read tokens into a cache of keys and values, a chunk at a time, and write on from there.

A chunk of tokens sees the cache and itself, so no array has the square of a text's length. The blocks are the training
model's own, on the training mesh; decoding keeps the sequence whole. Knows nothing of text.

Shapes: `B` rows (texts), `T` places of the cache, as `N` chunks of `C`, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from models.decoder import STACK, Leaves, Through
from models.inputs import Cache, Inputs
from sharding import collectives, tensor
from sharding.mesh import AXES
from sharding.pipeline.relay import relay
from trainer.step import Arrays

if TYPE_CHECKING:
    from trainer.program import Program

FEWEST_PLACES = 64
CHUNK = 256
"""Tokens that are read at a time, at most."""
_SCORES = 1 << 21
"""Of one head, that a chunk may have with the cache."""

Decode = Callable[[jax.Array, Cache, jax.Array | int, int], tuple[jax.Array, Cache]]
"""(tokens [B, S], cache, their first place, n) -> logits after the last n of them, [B, n, V], and the cache."""
Carry = tuple[jax.Array, jax.Array, jax.Array, jax.Array, Cache]
"""Tokens [B, T], the next place, the rows that go on [B], logits [B, V] of what comes next, cache."""


class Space(NamedTuple):
    """The shapes of a cache: few, so that few programs are compiled."""

    rows: int
    chunks: int
    chunk: int

    @property
    def places(self) -> int:
        return self.chunks * self.chunk

    def read(self, longest: int) -> int:
        """Places of the chunks that the longest text takes to read."""
        return -(-longest // self.chunk) * self.chunk


def space(rows: int, tokens: int, most: int) -> Space:
    """For so many texts of `tokens` each, with what is written; `most` is what the model has positions for.

    Rows and tokens are rounded up to powers of two, tokens at most to `most`. There is a chunk more, since a text may
    begin anywhere in the first.
    """
    rows = _power_of_two(rows)
    tokens = max(tokens, min(_power_of_two(max(tokens, FEWEST_PLACES)), most))
    bound = max(min(CHUNK, _SCORES // (rows * tokens), tokens // 2), 1)
    chunk = 1 << (bound.bit_length() - 1)
    return Space(rows, -(-tokens // chunk) + 1, chunk)


def _power_of_two(number: int) -> int:
    """The least that is not below."""
    return 1 << (number - 1).bit_length()


class Sampling(NamedTuple):
    """How the next token is chosen; arrays, so that changing them compiles nothing."""

    temperature: jax.typing.ArrayLike  # float32; 0: the likeliest
    top_k: jax.typing.ArrayLike  # int32: among that many likeliest
    seed: jax.typing.ArrayLike  # uint32
    end: jax.typing.ArrayLike  # int32: stop after this token; -1: never
    words: jax.Array | np.ndarray  # bool [V]: those that may be chosen


def writer(program: Program) -> Callable[..., jax.Array]:
    """(parameters, tokens [B, N, C], first [B], read, last [B], Sampling) -> tokens [B, T], jitted.

    The text of row b stands at its places `first`.. to the common `read`, which is a multiple of C; behind it, what is
    written, up to `last`. A row that has ended before the others is filled up with `Sampling.end`.
    """

    def write(
        parameters: Arrays, tokens: jax.Array, first: jax.Array, read: jax.Array, last: jax.Array, sampling: Sampling
    ) -> jax.Array:
        decode, chunk = _decoder(program, parameters, first), tokens.shape[2]

        def fill(index: jax.Array, carry: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
            logits, cache = decode(jax.lax.dynamic_index_in_dim(tokens, index, 1, False), carry[1], index * chunk, 1)
            return logits[:, 0], cache

        def append(carry: Carry) -> Carry:
            written, at, open_B, logits, cache = carry
            chosen = collectives.all_max(_sample(logits, at - first, sampling), AXES)
            token = jnp.where(open_B, chosen, sampling.end)
            written = jax.lax.dynamic_update_slice(written, token[:, None], (0, at))
            logits, cache = decode(token[:, None], cache, at, 1)
            return written, at + 1, open_B & (token != sampling.end) & (at + 1 < last), logits[:, 0], cache

        none = collectives.varying(jnp.zeros((len(tokens), program.config.model.vocab), jnp.float32), AXES)
        logits, cache = jax.lax.fori_loop(0, read // chunk, fill, (none, _empty(program, tokens.size, len(tokens))))
        start = (tokens.reshape(len(tokens), -1), read, read < last, logits, cache)
        return jax.lax.while_loop(lambda carry: jnp.any(carry[2]), append, start)[0]

    scalar = PartitionSpec()
    return program.forward(write, (scalar,) * 5, scalar)


class Reader(NamedTuple):
    """Programs that give the logits after every token."""

    empty: Callable[[int, int], Cache]
    """(rows, places) -> a cache."""
    read: Callable[..., tuple[jax.Array, Cache]]
    """(parameters, tokens [B, C], first place, cache) -> (logits [devices, B, C, V] float32, all the same; cache)."""


def reader(program: Program) -> Reader:
    """Every device has its own part of a cache: from outside, it has the devices as its first dim."""
    axes = tuple(axis for axis in AXES if program.mesh.shape[axis] > 1)
    everywhere, one = PartitionSpec(axes or None), PartitionSpec()

    def empty(rows: int, places: int) -> Cache:
        return jax.tree.map(lambda x: x[None], _empty(program, rows * places, rows))

    def read(parameters: Arrays, tokens: jax.Array, at: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        decode = _decoder(program, parameters, jnp.zeros(len(tokens), jnp.int32))
        logits, cache = decode(tokens, jax.tree.map(lambda x: x[0], cache), at, tokens.shape[1])
        return jax.tree.map(lambda x: x[None], (logits, cache))

    def make_empty(rows: int, places: int) -> Cache:
        return program.manual(partial(empty, rows, places), (), everywhere)()

    forward = program.forward(read, (one, one, everywhere), (everywhere, everywhere), donate=(3,))
    return Reader(jax.jit(make_empty, static_argnums=(0, 1)), forward)


def _empty(program: Program, size: int, rows: int) -> Cache:
    """This device's part of a cache of `size` places for all rows together."""
    config, step = program.config.model, program.train_step
    queries = program.layouts["layers.attention.query.weight"].block_shape[2]
    kv_heads = tensor.num_kv_heads(queries, config.heads, config.num_kv_heads)
    shape = (program.stages.num_layers_held, rows, size // rows, kv_heads, config.dim_per_head)
    zeros = collectives.varying(jnp.zeros(shape, step.zero.compute), AXES)
    return Cache(zeros, zeros)


def _decoder(program: Program, parameters: Arrays, first: jax.Array) -> Decode:
    """The model's `decode`, with the logits of the whole vocabulary and no padding, varying over all axes."""
    step, model = program.train_step, program.model
    leaves = step.open(parameters)
    through = _through_stages(program, leaves) if program.pipeline else None

    def decode(tokens: jax.Array, cache: Cache, at: jax.Array | int, num: int) -> tuple[jax.Array, Cache]:
        logits, cache = model.decode(leaves, step.fetch, tokens, cache, at, first, num, through)
        whole = collectives.gather(logits, model.vocab_axes, 2)[..., : program.config.model.vocab]
        return collectives.varying(whole, AXES), cache

    return decode


def _through_stages(program: Program, leaves: Leaves) -> Through:
    """What takes activations through the layers of all stages."""
    stack = {name: leaf for name, leaf in leaves.items() if name.startswith(STACK)}
    model, fetch, stages = program.model, program.train_step.fetch, program.stages

    def through(x: jax.Array, inputs: Inputs, cache: Cache) -> tuple[jax.Array, Cache]:
        def blocks(leaves: Leaves, numbers: jax.Array, x: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
            return model.blocks(leaves, fetch, x, inputs, numbers, cache=cache, missing=stages.missing)

        return relay(blocks, stages, stack, x, cache)

    return through


def _sample(logits_BV: jax.Array, place_B: jax.Array, sampling: Sampling) -> jax.Array:
    """Each row's token at its place, int32 [B]: a function of (seed, place, its logits), whatever the mesh and rows."""
    allowed_BV = jnp.where(sampling.words[None], logits_BV, -jnp.inf)
    ranked, vocab = jnp.sort(allowed_BV, axis=-1), logits_BV.shape[-1]
    least = jnp.take(ranked, vocab - jnp.clip(sampling.top_k, 1, vocab), axis=-1)[:, None]
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(sampling.seed), place_B)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (vocab,)))(keys) * sampling.temperature
    return jnp.argmax(jnp.where(allowed_BV >= least, allowed_BV, -jnp.inf) + noise, axis=-1).astype(jnp.int32)
