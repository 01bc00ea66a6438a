"""The decoder: embedding, a stack of equal blocks, head. GPT-2, BLOOM and Llama are three values of its config.

A model is described without memory: `declarations` names every parameter with its logical shape. To run, it is given
`leaves` (what the caller holds for each parameter, the blocks' stacked on dim 0) and `fetch(name, leaf)`, which turns
one into the weight at the moment it is used. So ZeRO can gather late without the model knowing.

Shapes: `B` batch, `S` sequence (`s` = this device's slice), `D` model, `V` vocabulary (`v` = this device's block),
`L` layers, `T` cache positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models import rope
from models.config import ModelConfig
from models.inputs import Batch, Cache, Inputs, running_positions
from models.layers import Block, Norm, drop
from models.parameter import Declaration, Init, parameter
from pallas_kernels.attention import Attend
from pallas_kernels.reference import attention
from sharding import collectives, tensor
from sharding.mesh import AXES
from sharding.pipeline.branch import LAYER, branch

Leaves = Mapping[str, Any]
Fetch = Callable[[str, Any], jax.Array]
Policy = Callable[..., Any]
"""Of `jax.checkpoint`: told an operation and its operands, whether to keep the result, or in which memory."""
Layer = tuple[jax.Array, Leaves, Cache | None]  # its number, weights and, while decoding, cache
Parts = tuple[jax.Array, ...]  # of the batch, [B / parts, s, D] each
BlockStep = Callable[[Parts, Layer], tuple[Parts, Cache | None]]
Through = Callable[[jax.Array, Inputs, Cache], tuple[jax.Array, Cache]]
TOKEN_TABLE = "embedding.weight"
STACK = "layers."
"""The prefix of the parameters that are stacked over the layers."""
BLOCK_INPUT = "input"
"""The name of what goes into a block, by which a policy can tell where it waits for the backward pass."""


class Embedding(nnx.Module):
    """Token embedding, with learned positions and a norm where the family has them."""

    def __init__(self, config: ModelConfig) -> None:
        self.dropout = config.dropout
        self.weight = parameter((config.vocab, config.hidden), ("vocab", "embed"), Init(std=config.init_std))
        if config.positions == "learned":
            self.positions = parameter(
                (config.context, config.hidden), ("positions", "embed"), Init(std=config.init_std)
            )
        self.norm = Norm(config) if config.embedding_norm else None

    def __call__(self, tokens_BS: jax.Array, inputs: Inputs, vocab_axes: Sequence[str]) -> jax.Array:
        """[B, S] -> [B, s, D]."""
        x = tensor.embed(self.weight[...], tokens_BS, inputs.split, vocab_axes)
        if hasattr(self, "positions"):
            x = x + tensor.look_up(self.positions[...], tensor.slice_of_sequence(inputs.positions, inputs.split))
        if self.norm is not None:
            x = self.norm(x)
        return drop(x, inputs, self.dropout, 0)


class Head(nnx.Module):
    """The last norm and, unless it is the embedding's, the output matrix."""

    def __init__(self, config: ModelConfig) -> None:
        self.norm = Norm(config)
        if not config.tied:
            self.weight = parameter((config.vocab, config.hidden), ("vocab", "embed"), Init(std=config.init_std))


@dataclass(frozen=True)
class Decoder:
    """The model of one config. Holds no arrays."""

    config: ModelConfig
    vocab_axes: tuple[str, ...] = (tensor.AXIS,)
    """The mesh axes that the embedding and the head are cut over, by vocabulary."""
    attend: Attend = attention
    """What computes attention, but for decoding."""
    parts: int = 1
    """Parts of a batch that each block works at side by side, but for decoding; they divide it."""
    documents: bool = True
    """Those packed into a sequence do not see each other; else it is read as one, whose positions run through."""

    @cached_property
    def declarations(self) -> dict[str, Declaration]:
        """Every parameter by its name, in a fixed order; those of the blocks with dim 0 = layer."""
        found = {}
        for part, (_, state) in self._parts.items():
            for path, variable in nnx.to_flat_state(state):
                declaration = variable.get_metadata("declaration")
                if part == "layers":
                    shape, axes = (self.config.layers, *declaration.shape), ("layers", *declaration.axes)
                    declaration = Declaration(shape, axes, declaration.init)
                found[".".join((part, *path))] = declaration
        return found

    def loss(
        self, leaves: Leaves, fetch: Fetch, batch: Batch, dropout_key: jax.Array | None, policy: Policy | None
    ) -> jax.Array:
        """Σ weight x token loss over this device's batch, float32 scalar.

        `policy` says which of a block's activations to keep for its backward pass (None: whatever JAX keeps).
        """
        fetch = self._tied_once(leaves, fetch)
        inputs = self.inputs(batch, dropout_key)
        x = self.embed(leaves, fetch, batch.tokens, inputs)
        x, _ = self.blocks(leaves, fetch, x, inputs, jnp.arange(self.config.layers), policy)
        return self.head_loss(leaves, fetch, x, batch)

    def inputs(self, batch: Batch, dropout_key: jax.Array | None) -> Inputs:
        """What all blocks need to know of a batch. Without a key nothing is dropped."""
        positions = batch.positions if self.documents else running_positions(batch)
        return Inputs(
            split=True,
            positions=positions,
            segments=(batch.segments, batch.segments) if self.documents else None,
            rope=self._rope(positions),
            dropout_key=dropout_key if self.config.dropout else None,
            samples=batch.samples,
            attend=self.attend,
        )

    def embed(self, leaves: Leaves, fetch: Fetch, tokens_BS: jax.Array, inputs: Inputs) -> jax.Array:
        """What goes into the first block, [B, s, D]."""
        return self._part("embedding", leaves, fetch)(tokens_BS, inputs, self.vocab_axes)

    def blocks(
        self,
        leaves: Leaves,
        fetch: Fetch,
        x: jax.Array,
        inputs: Inputs,
        layers_L: jax.Array,
        policy: Policy | None = None,
        cache: Cache | None = None,
        missing: bool = False,
    ) -> tuple[jax.Array, Any]:
        """[B, s, D] -> [B, s, D] through the blocks whose leaves are given, stacked; `layers_L` numbers them, int32.

        `cache` holds keys and values of these blocks, [L, B, T, G, K], while decoding, and comes back written. With
        `missing`, some blocks may have the number -1: there is no such block, and its leaves are padding.
        """
        inputs_of = inputs.cut(1 if cache is not None else self.parts)

        def one(xs: Parts, layer: Layer) -> tuple[Parts, Cache | None]:
            index, layer_leaves, layer_cache = layer
            run = self._part("layers", layer_leaves, fetch)
            # Nothing ties one part to another: XLA may work at one while what another sends is on its way.
            named = [checkpoint_name(x, BLOCK_INPUT) for x in xs]
            made = [run(x, inputs, index, layer_cache) for x, inputs in zip(named, inputs_of, strict=True)]
            return tuple(x for x, _ in made), made[0][1]

        block: BlockStep = one
        if policy is not None:
            block = jax.checkpoint(one, policy=policy, prevent_cse=not self.config.scan_layers)
        if missing:
            block = _unless_missing(block)
        stack = {name: leaf for name, leaf in leaves.items() if name.startswith(STACK)}
        xs = tuple(jnp.split(x, len(inputs_of)))
        if self.config.scan_layers or cache is not None:
            xs, cache = jax.lax.scan(block, xs, (layers_L, stack, cache))
            return jnp.concatenate(xs), cache
        arrays, tree = jax.tree.flatten(stack)
        for index, layer in enumerate(zip(*map(_unstack, arrays), strict=True)):
            xs, _ = block(xs, (layers_L[index], jax.tree.unflatten(tree, layer), None))
        return jnp.concatenate(xs), None

    def head_loss(self, leaves: Leaves, fetch: Fetch, x: jax.Array, batch: Batch) -> jax.Array:
        """The loss of what comes out of the last block, [B, s, D]: see `loss`."""
        head = self._part("head", leaves, fetch)
        x_BSD = tensor.enter(head.norm(x), split=True)
        return tensor.cross_entropy(
            x_BSD.reshape(-1, x_BSD.shape[-1]),
            self._output_table(head, leaves, fetch),
            batch.targets.reshape(-1),
            batch.weights.reshape(-1),
            self.config.vocab,
            self.vocab_axes,
        )

    def decode(
        self,
        leaves: Leaves,
        fetch: Fetch,
        tokens_BS: jax.Array,
        cache: Cache,
        offset: jax.Array | int,
        first_B: jax.Array,
        num: int,
        through: Through | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Tokens [B, S] at places `offset`.. of the cache -> logits after the last `num`, [B, num, v] float32; cache.

        The text of a row begins at its place `first_B`; what stands before it is seen by none of it. `through` takes
        the activations through all blocks, where they are not all at hand. Entries past the vocabulary are -inf.
        """
        places_S, places_T = offset + jnp.arange(tokens_BS.shape[1]), jnp.arange(cache.keys.shape[2])
        positions = jnp.maximum(places_S - first_B[:, None], 0)
        inputs = Inputs(
            split=False,
            positions=positions,
            segments=(_begun(places_S, first_B), _begun(places_T, first_B)),
            rope=self._rope(positions),
            offset=offset,
        )
        fetch = self._tied_once(leaves, fetch)
        x = self.embed(leaves, fetch, tokens_BS, inputs)
        x = collectives.varying(x, [axis for axis in AXES if axis != tensor.AXIS])
        if through is None:
            x, written = self.blocks(leaves, fetch, x, inputs, jnp.arange(self.config.layers), cache=cache)
        else:
            x, written = through(x, inputs, cache)
        head = self._part("head", leaves, fetch)
        table = self._output_table(head, leaves, fetch)
        return tensor.logits(head.norm(x[:, -num:]), table, self.config.vocab, self.vocab_axes), written

    @cached_property
    def _parts(self) -> dict[str, tuple[nnx.GraphDef, nnx.State]]:
        kinds = {"embedding": Embedding, "layers": Block, "head": Head}
        return {name: nnx.split(nnx.eval_shape(lambda kind=kind: kind(self.config))) for name, kind in kinds.items()}

    def _part(self, part: str, leaves: Leaves, fetch: Fetch) -> Any:
        """The module `part`, holding the weights fetched for it."""
        graph, state = self._parts[part]
        names = [".".join((part, *path)) for path, _ in nnx.to_flat_state(state)]
        weights = [fetch(name, leaves[name]) for name in names]
        return nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), weights))

    def _output_table(self, head: Head, leaves: Leaves, fetch: Fetch) -> jax.Array:
        return fetch(TOKEN_TABLE, leaves[TOKEN_TABLE]) if self.config.tied else head.weight[...]

    def _tied_once(self, leaves: Leaves, fetch: Fetch) -> Fetch:
        """`fetch`, that gets a tied table once for both its uses: their gradients add up before they travel."""
        if not self.config.tied:
            return fetch
        table = fetch(TOKEN_TABLE, leaves[TOKEN_TABLE])
        return lambda name, leaf: table if name == TOKEN_TABLE else fetch(name, leaf)

    def _rope(self, positions_BS: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        return rope.angles(self.config, positions_BS) if self.config.positions == "rope" else None


def _begun(places_N: jax.Array, first_B: jax.Array) -> jax.Array:
    """1 from the first place of a row's text on, 0 before it: int32 [B, N]."""
    return (places_N >= first_B[:, None]).astype(jnp.int32)


def _unless_missing(block: BlockStep) -> BlockStep:
    """`block`, that hands on what it is given where it has the number -1."""

    def run(xs: Parts, layer: Layer) -> tuple[Parts, Cache | None]:
        return branch(LAYER, layer[0] >= 0, block, lambda xs, layer: (xs, layer[2]), xs, layer)

    return run


@jax.custom_vjp
def _unstack(x: jax.Array) -> tuple[jax.Array, ...]:
    """One array a layer. The gradient stacks them; that of plain slices would add up L arrays padded with zeros."""
    return tuple(x)


_unstack.defvjp(lambda x: (tuple(x), None), lambda _, gradients: (jnp.stack(gradients),))
