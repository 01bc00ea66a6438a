"""Runs a schedule: one scan over the ticks of each phase, in which every stage does its own units.

Nothing here is differentiated from outside. A tick runs at most one forward and one backward of a stage; the pullback
is taken inside, and the weights' gradients are added to one accumulator at once. So what is alive is what the schedule
says, whatever the number of micro-batches. Activations go to the next stage and cotangents to the one before while the
other half of the tick is at work. Knows a model only as its three parts.

Shapes: `T` ticks, `P` stages, `M` micro-batches, `B` sequences of one, `s` tokens (of this device), `D` model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from sharding import collectives
from sharding.mesh import PIPELINE as AXIS
from sharding.pipeline.branch import LAYER, unit_name
from sharding.pipeline.routes import Routes, route
from sharding.pipeline.schedule import BACKWARD, FORWARD, Schedule
from sharding.pipeline.stages import Stages
from sharding.pipeline.ticks import Arrays, Carry, Ticks, Tree

Leaves = Mapping[str, Any]  # name -> (what is learned, what was gathered of it already or None)


class Parts(NamedTuple):
    """A model in three; `batch` is one micro-batch. What is stacked over layers is known by its name's beginning."""

    embed: Callable[[Leaves, Tree], jax.Array]
    """(leaves, batch) -> [B, s, D]."""
    blocks: Callable[[Leaves, jax.Array, Tree, jax.Array], jax.Array]
    """(stacked leaves, [B, s, D], batch, numbers of the layers) -> [B, s, D]."""
    head: Callable[[Leaves, jax.Array, Tree], jax.Array]
    """(leaves, [B, s, D], batch) -> loss."""
    stack: str
    """How the names of stacked leaves begin."""


@dataclass(frozen=True)
class Pipeline:
    """A schedule, and how it is carried out."""

    schedule: Schedule
    stages: Stages
    keep: Literal["residuals", "inputs"]
    head: Literal["spread", "last"]
    in_turn: bool = False
    """Nothing travels while a unit is at work. XLA on CPU needs it: what several devices exchange within branches it
    does not order against the rest, and two devices may wait for each other."""

    @cached_property
    def routes(self) -> Routes:
        return route(self.schedule)

    def loss_and_gradients(self, parts: Parts, leaves: Leaves, batches: Tree) -> tuple[jax.Array, Arrays]:
        """The loss, the same on all stages, and this device's share of each gradient, float32; summed over M.

        `batches` holds all micro-batches, [M, ...] each.
        """
        carry = self._run(Ticks(self, parts, leaves, batches))
        return self._of_all(carry.loss), carry.gradients

    def loss(self, parts: Parts, leaves: Leaves, batches: Tree) -> jax.Array:
        """The loss alone: the schedule's forwards, and nothing is kept."""
        carry = self._run(Ticks(self, parts, leaves, batches, training=False))
        return self._of_all(carry.loss)

    def _run(self, ticks: Ticks) -> Carry:
        carry = ticks.start()
        for index, phase in enumerate(self.schedule.phases):
            if ticks.training or phase.forward:
                carry, _ = jax.lax.scan(partial(ticks.tick, index, phase), carry, ticks.rows(phase))
        return carry

    def _of_all(self, loss: jax.Array) -> jax.Array:
        return loss if self.head == "spread" else collectives.all_sum(loss, [AXIS])

    @cached_property
    def occupancy(self) -> dict[str, np.ndarray]:
        """Which stage runs what at which tick: kind of unit -> bool [T, P]."""
        routes, runs = self.routes, self.schedule.runs
        stage = np.arange(self.stages.num_stages)
        everywhere = stage >= 0
        first, last = (stage == 0, stage == stage[-1]) if self.head == "last" else (everywhere, everywhere)
        return {
            "embed": (routes.embed >= 0)[:, None] & first,
            "forward": runs[:, :, FORWARD],
            "head": (routes.head >= 0)[:, None] & last,
            "backward": runs[:, :, BACKWARD],
            "embed_backward": (routes.embed_backward >= 0)[:, None] & first,
        }

    def shares(self, stage: int) -> dict[str, Fraction]:
        """How often a stage takes a branch, of the times that it comes to it: by the name of the branch's program."""
        numbers = self.stages.numbers[stage]
        shares = {LAYER: Fraction(int((numbers >= 0).sum()), numbers.size)}
        for kind, runs in self.occupancy.items():
            for index, phase in enumerate(self.schedule.phases):
                ticks = runs[phase.start : phase.stop, stage]
                shares[unit_name(kind, index)] = Fraction(int(ticks.sum()), len(ticks))
        return shares
