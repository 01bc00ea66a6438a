"""The train step: one function of local blocks, manual over all mesh axes.

Each device sees its own shards and its own rows of the batch, and says by name what it exchanges. Knows the model only
as a loss, the optimizer only as an elementwise update, and ZeRO only as `before`, `fetch` and `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from models.decoder import STACK, Decoder, Policy
from models.inputs import Batch
from sharding import collectives, streamed
from sharding.layout import Layout
from sharding.mesh import AXES, BATCH_AXES
from sharding.pipeline.executor import Parts, Pipeline
from sharding.streamed import InFile, InHostMemory, Outside, Store
from sharding.zero import Zero
from trainer import loss_scale
from trainer.optimizer import global_norm
from trainer.settings import LossScaleConfig

Arrays = dict[str, jax.Array]
Leaf = tuple[Any, Any]
"""A weight that is used: what the loss is differentiated by, and what else `TrainStep.fetch` needs."""


class TrainState(NamedTuple):
    """All that training changes on the devices. Arrays by name lie as their layouts say.

    Parameters and moments are float32; of a parameter whose optimizer state is offloaded, what is here is a copy in the
    dtype it is computed with, and no moments.
    """

    step: jax.Array  # int32: batches seen, skipped ones included
    skipped: jax.Array  # int32: steps that changed nothing, as their gradient was not finite or beyond the limits
    loss_scale: loss_scale.LossScale
    parameters: Arrays
    optimizer: Any  # optax's state, its moments laid out like the parameters


class Due(NamedTuple):
    """What is still to be done to parameters whose optimizer state is offloaded: their update."""

    gradients: Arrays  # float32, not clipped, as the master weights are laid out
    clip: jax.Array  # float32: what to multiply them by first
    good: jax.Array  # bool: whether to update at all
    updates: jax.Array  # int32: done before this one


class Metrics(NamedTuple):
    """Scalars of one step, equal on every device; they stay there until somebody prints them."""

    loss: jax.Array  # mean over the counted tokens of the global batch: the number that was optimised
    grad_norm: jax.Array  # before clipping
    learning_rate: jax.Array
    tokens: jax.Array  # counted targets in the global batch
    loss_scale: jax.Array  # the one this step used
    skipped_steps: jax.Array  # so far, this one included
    exhausted: jax.Array  # bool: float16 cannot go on, the loss scale is at its minimum


@dataclass(frozen=True)
class TrainStep:
    """(state, batch) -> (state, metrics) on one device's blocks."""

    model: Decoder
    layouts: Mapping[str, Layout]
    zero: Zero
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    policy: Policy | None
    micro_batch: int
    clip: float | None
    loss_scale: LossScaleConfig | None
    seed: int
    pipeline: Pipeline | None
    offloaded: tuple[str, ...] = ()
    """The parameters that are updated elsewhere, from what `split` gives."""
    streamed: tuple[str, ...] = ()
    """Those of them that stay off the devices, as do their gradients: in host memory, if they are in the state."""
    outside: Outside | None = None
    """Where they are if they are not."""
    in_turn: bool = False
    """Micro-batches of streamed weights do not overlap: see `collectives.is_there`."""

    def __call__(self, state: TrainState, batch: Batch, limits: jax.Array | None = None) -> tuple[TrainState, Metrics]:
        state, metrics, _ = self.split(state, batch, limits)
        return state, metrics

    def split(
        self, state: TrainState, batch: Batch, limits: jax.Array | None = None
    ) -> tuple[TrainState, Metrics, Due]:
        """The step, but for the update of what is offloaded.

        `limits`, float32 [2]: a step with a larger loss, or a larger gradient norm, changes nothing, as one that is not
        finite.
        """
        tokens = collectives.all_sum(jnp.sum(batch.weights), BATCH_AXES)
        # Each token is weighted by the global count beforehand, so that sums are means: of the loss, and of gradients.
        batch = batch._replace(weights=batch.weights * (state.loss_scale.scale / jnp.maximum(tokens, 1)))
        key = jax.random.fold_in(jax.random.key(self.seed), state.step)
        if self.streamed:
            loss, gradients, squares = self._streamed_loss_and_gradients(state.parameters, batch, key)
        else:
            (loss, gradients), squares = self._loss_and_gradients(state.parameters, batch, key), {}

        loss = collectives.all_sum(loss, BATCH_AXES) / state.loss_scale.scale
        for name, gradient in gradients.items():
            if name not in self.streamed:
                gradients[name] = self.zero.after(gradient, self.layouts[name]) / state.loss_scale.scale
                squares[name] = (gradients[name] * gradients[name]).sum()
        axes = {name: layout.sharded_axes for name, layout in self.layouts.items()}
        norm = global_norm({name: squares[name] for name in sorted(squares, key=self.streamed.__contains__)}, axes)
        finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        good = finite if limits is None else finite & (jnp.stack([loss, norm]) <= limits).all()
        rate = self.learning_rate(state.step)
        clip = jnp.minimum(1.0, (jnp.inf if self.clip is None else self.clip) / (norm + 1e-6))
        here = {name: gradient for name, gradient in gradients.items() if name not in self.offloaded}
        parameters, optimizer = self._update(state, here, clip, rate)
        scale = state.loss_scale
        if self.loss_scale is not None:
            scale = loss_scale.update(self.loss_scale, scale, finite)
        new = TrainState(
            step=state.step + 1,
            skipped=state.skipped + jnp.logical_not(good),
            loss_scale=scale,
            parameters=state.parameters | _choose(good, parameters, {name: state.parameters[name] for name in here}),
            optimizer=_choose(good, optimizer, state.optimizer),
        )
        metrics = Metrics(loss, norm, rate, tokens, state.loss_scale.scale, new.skipped, scale.exhausted)
        elsewhere = {name: gradients[name] for name in gradients if name in self.offloaded}
        updates = optax.tree_utils.tree_get(state.optimizer, "count", jnp.int32(0))
        return new, metrics, Due(elsewhere, clip, good, updates)

    def evaluate(self, parameters: Arrays, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """(Σ weight x token loss, Σ weight) over the global batch: the training model's forward pass, no dropout."""
        leaves, batches = self.open(parameters), self._micro_batches(batch)
        if self.pipeline is not None:
            total = self.pipeline.loss(self._parts(self.pipeline, None), leaves, batches)
        else:
            total = jnp.sum(jax.lax.map(lambda one: self.model.loss(leaves, self.fetch, one, None, None), batches))
        sums = jnp.stack([total, jnp.sum(batch.weights)])
        loss, tokens = collectives.all_sum(sums, BATCH_AXES)
        return loss, tokens

    def open(self, parameters: Arrays) -> dict[str, Leaf]:
        """The weights as `fetch` takes them: (what is learned, what the layer needs besides)."""
        leaves = {
            name: (None, weight) if name in self.streamed else self.zero.before(weight, self.layouts[name])
            for name, weight in parameters.items()
        }
        outside = {name: self.layouts[name].shard_shape[0] for name in self.streamed if name not in parameters}
        return leaves | {name: (None, jnp.arange(layers)) for name, layers in outside.items()}

    def fetch(self, name: str, leaf: Leaf) -> jax.Array:
        """One weight as a layer uses it."""
        layout = self.layouts[name]
        layout = layout.layer if layout.stacked else layout
        if name not in self.streamed:
            return self.zero.fetch(*leaf, layout)
        so_far, weight = leaf
        return streamed.fetch(so_far, weight, layout, self.zero, self._store(name, weight))

    def _store(self, name: str, weight: jax.Array) -> Store:
        """Where a streamed weight is, by what a layer is given of it."""
        if weight.dtype != jnp.int32:
            return InHostMemory()
        assert self.outside is not None, f"{name} is neither in the state nor outside"
        return InFile(name, self.outside)

    def _micro_batches(self, batch: Batch) -> Batch:
        """[B, ...] -> [accumulation, micro, ...]"""
        return jax.tree.map(lambda x: x.reshape(-1, self.micro_batch, *x.shape[1:]), batch)

    def _parts(self, pipeline: Pipeline, key: jax.Array | None) -> Parts:
        """The model as stages run it."""
        model, fetch, missing = self.model, self.fetch, pipeline.stages.missing
        return Parts(
            embed=lambda leaves, batch: model.embed(leaves, fetch, batch.tokens, model.inputs(batch, key)),
            blocks=lambda leaves, x, batch, numbers: model.blocks(
                leaves, fetch, x, model.inputs(batch, key), numbers, self.policy, missing=missing
            )[0],
            head=lambda leaves, x, batch: model.head_loss(leaves, fetch, x, batch),
            stack=STACK,
        )

    def _micro_loss(self, opened: Mapping[str, Leaf], key: jax.Array) -> Callable[[dict[str, Any], Batch], jax.Array]:
        """(what is learned, by name, a micro-batch) -> this device's share of its loss."""

        def micro_loss(learned: dict[str, Any], batch: Batch) -> jax.Array:
            leaves = {name: (leaf, opened[name][1]) for name, leaf in learned.items()}
            return self.model.loss(leaves, self.fetch, batch, key, self.policy)

        return micro_loss

    def _loss_and_gradients(self, masters: Arrays, batch: Batch, key: jax.Array) -> tuple[jax.Array, Arrays]:
        """This device's share of the loss, and of each gradient: float32, summed over its micro-batches."""
        opened = self.open(masters)
        if self.pipeline is not None:
            parts = self._parts(self.pipeline, key)
            return self.pipeline.loss_and_gradients(parts, opened, self._micro_batches(batch))
        learned = {name: leaf for name, (leaf, _) in opened.items()}
        micro_loss = self._micro_loss(opened, key)

        def accumulate(total: Any, micro: Batch) -> tuple[Any, None]:
            one = jax.value_and_grad(micro_loss)(learned, micro)
            return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), total, one), None

        size = batch.tokens.shape[0]
        if size == self.micro_batch:
            loss, gradients = jax.value_and_grad(micro_loss)(learned, batch)
        else:
            zeros = jax.tree.map(
                lambda x: collectives.varying(jnp.zeros(x.shape, jnp.float32), tuple(collectives.varying_axes(x))),
                (batch.weights[0, 0], learned),
            )
            (loss, gradients), _ = jax.lax.scan(accumulate, zeros, self._micro_batches(batch))
        return loss, {name: gradient.astype(jnp.float32) for name, gradient in gradients.items()}

    def _streamed_loss_and_gradients(
        self, masters: Arrays, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Arrays, Arrays]:
        """See `_loss_and_gradients`; those of streamed weights are global already, and may be outside. Also Σ gradient²
        of these, on this device."""
        opened = self.open(masters)
        here = {name: leaf for name, (leaf, _) in opened.items() if name not in self.streamed}
        start = {name: streamed.first(self.layouts[name], self._store(name, opened[name][1])) for name in self.streamed}
        micro_loss = self._micro_loss(opened, key)

        def add(a: jax.Array, b: jax.Array) -> jax.Array:
            return a + b.astype(jnp.float32)

        def accumulate(total: Any, micro: Batch) -> tuple[Any, None]:
            loss, gradients, sums = total
            more, found = jax.value_and_grad(micro_loss)({**here, **sums}, micro)
            sums = {name: found.pop(name) for name in sums}
            return (loss + more, jax.tree.map(add, gradients, found), sums), None

        batches = self._micro_batches(batch)
        loss, found = jax.value_and_grad(micro_loss)({**here, **start}, jax.tree.map(lambda x: x[0], batches))
        sums = {name: streamed.Sum(*found.pop(name)) for name in start}
        total = loss, {name: gradient.astype(jnp.float32) for name, gradient in found.items()}, sums
        if self.micro_batch < len(batch.tokens):
            others = jax.tree.map(lambda x: x[1:], batches)
            if self.in_turn:
                done = [*total[1].values(), *(so_far.square for so_far in sums.values())]
                others = others._replace(tokens=jnp.where(_are_there(done), others.tokens, 0))
            total, _ = jax.lax.scan(accumulate, total, others)
        loss, gradients, sums = total
        gradients |= {name: so_far.total for name, so_far in sums.items() if so_far.total is not None}
        return loss, gradients, {name: streamed.squares(so_far, self.layouts[name]) for name, so_far in sums.items()}

    def _update(self, state: TrainState, gradients: Arrays, clip: jax.Array, rate: jax.Array) -> tuple[Arrays, Any]:
        """The new values of the parameters that have a gradient here, and the optimizer's state."""
        if self.clip is not None:
            gradients = {name: gradient * clip for name, gradient in gradients.items()}
        parameters = {name: state.parameters[name] for name in gradients}
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, parameters)
        return {name: parameters[name] - rate * updates[name] for name in updates}, optimizer


def _are_there(arrays: Sequence[jax.Array]) -> jax.Array:
    """True on all devices, but only once they all have these arrays."""
    there = jnp.stack([collectives.varying(collectives.is_there(x), AXES) for x in arrays]).all()
    return collectives.all_max(there.astype(jnp.int32), AXES) > 0


def _choose(new_is_good: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(new_is_good, a, b), new, old)
