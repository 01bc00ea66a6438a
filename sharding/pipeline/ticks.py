"""One tick of a pipeline, as one stage traces it: its forward, the head, its backward, the embedding's gradient.

What each tick does is read from rows of the schedule's table, so that one program serves every stage. Called by
`sharding.pipeline.executor`, which scans over the ticks.

Shapes: `T` ticks, `P` stages, `M` micro-batches, `B` sequences of one, `s` tokens (of this device), `D` model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sharding import collectives
from sharding.mesh import AXES
from sharding.mesh import PIPELINE as AXIS
from sharding.pipeline.branch import branch, unit_name
from sharding.pipeline.chunks import add_chunk, take_chunk
from sharding.pipeline.keep import Keeper, KeepInputs, KeepResiduals
from sharding.pipeline.schedule import BACKWARD, CHUNK, FORWARD, MICRO_BATCH, SLOT, Phase

if TYPE_CHECKING:
    from sharding.pipeline.executor import Leaves, Parts, Pipeline

Tree = Any
Arrays = dict[str, jax.Array]
When = Callable[..., Tree]


class Carry(NamedTuple):
    """What goes from tick to tick. Leaves that training needs are empty without it."""

    activation: jax.Array  # [B, s, D]: what the previous stage made in the last tick
    cotangent: jax.Array  # [B, s, D]: what this stage made in the last tick, not sent yet
    activations: jax.Array  # [slots, B, s, D]: the inbox
    cotangents: jax.Array  # likewise
    kept: list[jax.Array]  # [slots, ...] each
    gradients: Arrays  # float32
    loss: jax.Array


class Row(NamedTuple):
    """What this stage does in one tick, int32: a row of the schedule and of its routes."""

    runs: dict[str, jax.Array]  # bool, by the kind of unit
    forward: jax.Array  # [3]: chunk, micro-batch, slot
    backward: jax.Array
    activation_in: jax.Array
    activation_use: jax.Array
    cotangent_in: jax.Array
    cotangent_head: jax.Array
    cotangent_use: jax.Array
    embed: jax.Array
    head: jax.Array
    embed_backward: jax.Array


class Ticks:
    """The trace of one program: what a tick reads, and what it computes."""

    def __init__(self, pipeline: Pipeline, parts: Parts, leaves: Leaves, batches: Tree, training: bool = True) -> None:
        self.pipeline, self.parts, self.batches, self.training = pipeline, parts, batches, training
        self.leaves = leaves
        self.stack = {name: leaf for name, leaf in leaves.items() if name.startswith(parts.stack)}
        self.around = pipeline.stages.num_chunks > 1
        self.stage = jax.lax.axis_index(AXIS)
        self.is_first, self.is_last = self.stage == 0, self.stage == pipeline.stages.num_stages - 1
        self.numbers = jnp.asarray(pipeline.stages.numbers)[self.stage]  # [chunks, depth]

    # What a tick reads.

    def rows(self, phase: Phase) -> Row:
        """This stage's rows of the tables, [ticks, ...] each."""
        routes, units = self.pipeline.routes, self.pipeline.schedule.units

        def of_all(column: np.ndarray) -> jax.Array:
            return jnp.asarray(column[phase.start : phase.stop])

        def mine(column: np.ndarray) -> jax.Array:
            return jnp.take(of_all(column), self.stage, axis=1)

        return Row(
            runs={
                kind: of_all(runs[:, 0]) if (runs == runs[:, :1]).all() else mine(runs)
                for kind, runs in self.pipeline.occupancy.items()
            },
            forward=mine(units[:, :, FORWARD]),
            backward=mine(units[:, :, BACKWARD]),
            activation_in=mine(routes.activation_in),
            activation_use=mine(routes.activation_use),
            cotangent_in=mine(routes.cotangent_in),
            cotangent_head=mine(routes.cotangent_head),
            cotangent_use=mine(routes.cotangent_use),
            embed=of_all(routes.embed),
            head=of_all(routes.head),
            embed_backward=of_all(routes.embed_backward),
        )

    def batch(self, micro_batch: jax.Array) -> Tree:
        index = jnp.maximum(micro_batch, 0)
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), self.batches)

    def chunk(self, unit: jax.Array) -> tuple[Arrays, Tree]:
        """(what is learned, what else is needed) of a unit, as `self.blocks` takes it."""
        chunk = jnp.maximum(unit[CHUNK], 0)
        leaves = jax.tree.map(lambda x: take_chunk(x, chunk, self.pipeline.stages.num_chunks), self.stack)
        learned = {name: leaf for name, (leaf, _) in leaves.items()}
        gathered = {name: leaf for name, (_, leaf) in leaves.items()}
        return learned, (gathered, self.batch(unit[MICRO_BATCH]), self.numbers[chunk])

    # What a tick computes.

    def embed(self, learned: Arrays, micro_batch: jax.Array) -> jax.Array:
        x = self.parts.embed(self.shared_leaves(learned), self.batch(micro_batch))
        return collectives.varying(x, AXES)

    def blocks(self, learned: Arrays, others: Tree, x: jax.Array) -> jax.Array:
        gathered, batch, numbers = others
        leaves = {name: (leaf, gathered[name]) for name, leaf in learned.items()}
        return collectives.varying(self.parts.blocks(leaves, x, batch, numbers), AXES)

    def head(self, learned: Arrays, y: jax.Array, micro_batch: jax.Array) -> jax.Array:
        if self.pipeline.head == "spread":  # the last stage has y, and all take part
            y = collectives.varying(collectives.all_sum(jnp.where(self.is_last, y, 0), [AXIS]), [AXIS])
        return self.parts.head(self.shared_leaves(learned), y, self.batch(micro_batch))

    @cached_property
    def shared(self) -> Arrays:
        """What is learned outside of the blocks."""
        return {name: leaf for name, (leaf, _) in self.leaves.items() if name not in self.stack}

    def shared_leaves(self, learned: Arrays) -> Leaves:
        return {name: (leaf, self.leaves[name][1]) for name, leaf in learned.items()}

    @cached_property
    def keeper(self) -> Keeper:
        if self.pipeline.keep == "inputs":
            return KeepInputs(self.blocks)
        learned, others = self.chunk(self.first_row.forward)
        return KeepResiduals(self.blocks, learned, others, _zeros(self.activation))

    @cached_property
    def first_row(self) -> Row:
        return jax.tree.map(lambda x: x[0], self.rows(self.pipeline.schedule.phases[0]))

    @cached_property
    def activation(self) -> jax.ShapeDtypeStruct:
        """[B, s, D], as it goes from stage to stage."""
        return jax.eval_shape(self.embed, self.shared, self.first_row.embed)

    def start(self) -> Carry:
        learned, others = self.chunk(self.first_row.forward)
        zero, routes, slots = _zeros(self.activation), self.pipeline.routes, self.pipeline.schedule.num_slots
        loss = jax.eval_shape(self.head, self.shared, zero, self.first_row.head)
        kept, gradients = [], {}
        if self.training:
            _, kept = jax.eval_shape(self.keeper.forward, learned, others, zero)
            gradients = {
                name: collectives.varying(jnp.zeros(leaf.shape, jnp.float32), AXES)
                for name, (leaf, _) in self.leaves.items()
            }
        return Carry(
            activation=self.begin(zero),
            cotangent=zero,
            activations=_zeros(self.activation, routes.num_slots.activations),
            cotangents=_zeros(self.activation, routes.num_slots.cotangents),
            kept=[_zeros(x, slots) for x in kept],
            gradients=gradients,
            loss=collectives.varying(_zeros(loss), [AXIS] if self.pipeline.head == "last" else []),
        )

    def begin(self, zero: jax.Array) -> jax.Array:
        """`zero`, without which no tick can begin, after all that the ticks are given, where that has to be said."""
        if self.pipeline.in_turn:
            for given in jax.tree.leaves((self.leaves, self.batches)):
                zero = jnp.where(collectives.is_there(given), zero, 1)
        return zero

    def tick(self, index: int, phase: Phase, carry: Carry, row: Row) -> tuple[Carry, None]:
        when = partial(self.when, index, phase, row)
        if phase.forward:
            carry, y = self.forward_half(when, carry, row)
            carry = self.head_of(when, carry, row, y)
            # It travels while the backward half is at work, and the cotangent while the next forward half is.
            carry = carry._replace(activation=self.send(y, 1, carry.loss))
        if phase.backward and self.training:
            carry = self.backward_half(when, carry, row)
            carry = self.embed_back(when, carry, row)
        return carry, None

    def when(self, index: int, phase: Phase, row: Row, kind: str, unit: Callable[..., Tree], *arguments: Any) -> Tree:
        """What `unit` gives, in the ticks in which this stage runs it; zeros otherwise, without the work."""
        runs = self.pipeline.occupancy[kind][phase.start : phase.stop]
        if runs.all():
            return unit(*arguments)
        shapes = jax.eval_shape(unit, *arguments)
        if not runs.any():
            return jax.tree.map(_zeros, shapes)

        name, idle = unit_name(kind, index), lambda *_: jax.tree.map(_zeros, shapes)
        return branch(name, row.runs[kind], unit, idle, *arguments)

    def forward_half(self, when: When, carry: Carry, row: Row) -> tuple[Carry, jax.Array]:
        inbox = _put(carry.activations, carry.activation, row.activation_in)
        embedded = when("embed", self.embed, self.shared, row.embed)
        x = jnp.where(row.activation_use >= 0, _get(inbox, row.activation_use), embedded)
        forward = self.keeper.forward if self.training else self.forward_only
        y, kept = when("forward", forward, *self.chunk(row.forward), x)
        kept = [_put(slots, new, row.forward[SLOT]) for slots, new in zip(carry.kept, kept, strict=True)]
        return carry._replace(activations=inbox, kept=kept), y

    def send(self, x: jax.Array, by: int, after: jax.Array) -> jax.Array:
        """To the next stage (1) or the one before (-1); one thing `after` the other, where that has to be said."""
        if self.pipeline.in_turn:
            x = jnp.where(collectives.is_there(after), x, 0)
        return collectives.shift(x, AXIS, by, self.around)

    def forward_only(self, learned: Arrays, others: Tree, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        return self.blocks(learned, others, x), []

    def head_of(self, when: When, carry: Carry, row: Row, y: jax.Array) -> Carry:
        """The loss of the micro-batch that left the last virtual stage, and the cotangent that starts its way back."""
        if not self.training:
            return carry._replace(loss=carry.loss + when("head", self.head, self.shared, y, row.head))
        head = jax.value_and_grad(self.head, (0, 1))
        loss, (gradients, d_y) = when("head", head, self.shared, y, row.head)
        return carry._replace(
            loss=carry.loss + loss,
            gradients=carry.gradients | _sum(carry.gradients, gradients),
            cotangents=_put(carry.cotangents, d_y, row.cotangent_head),
        )

    def backward_half(self, when: When, carry: Carry, row: Row) -> Carry:
        arrived = self.send(carry.cotangent, -1, carry.activation)
        inbox = _put(carry.cotangents, arrived, row.cotangent_in)
        kept = [_get(slots, row.backward[SLOT]) for slots in carry.kept]
        d_y = _get(inbox, row.cotangent_use)
        gradients, d_x = when("backward", self.keeper.backward, *self.chunk(row.backward), kept, d_y)
        chunk, num_chunks = jnp.maximum(row.backward[CHUNK], 0), self.pipeline.stages.num_chunks
        gradients = {
            name: add_chunk(carry.gradients[name], gradient, chunk, num_chunks) for name, gradient in gradients.items()
        }
        return carry._replace(cotangent=d_x, cotangents=inbox, gradients=carry.gradients | gradients)

    def embed_back(self, when: When, carry: Carry, row: Row) -> Carry:
        """The gradients of what the first virtual stage was given."""

        def back(learned: Arrays, micro_batch: jax.Array, d_x: jax.Array) -> Arrays:
            _, pullback = jax.vjp(lambda learned: self.embed(learned, micro_batch), learned)
            return pullback(jnp.where(self.is_first, d_x, 0))[0]

        gradients = when("embed_backward", back, self.shared, row.embed_backward, carry.cotangent)
        return carry._replace(gradients=carry.gradients | _sum(carry.gradients, gradients))


def _zeros(like: jax.ShapeDtypeStruct, slots: int | None = None) -> jax.Array:
    """Zeros of one shape and type, or [slots, ...] of them."""
    shape = like.shape if slots is None else (slots, *like.shape)
    return collectives.varying(jnp.zeros(shape, like.dtype), tuple(collectives.varying_axes(like)))


def _get(slots: jax.Array, slot: jax.Array) -> jax.Array:
    """[slots, ...] -> [...]; anything where there is no slot."""
    return jax.lax.dynamic_index_in_dim(slots, jnp.maximum(slot, 0), keepdims=False)


def _put(slots: jax.Array, new: jax.Array, slot: jax.Array) -> jax.Array:
    """With `new` in one slot; as it is where there is no slot."""
    kept = jnp.where(slot >= 0, new, _get(slots, slot))
    return jax.lax.dynamic_update_index_in_dim(slots, kept, jnp.maximum(slot, 0), 0)


def _sum(totals: Arrays, new: Arrays) -> Arrays:
    return {name: totals[name] + gradient.astype(jnp.float32) for name, gradient in new.items()}
