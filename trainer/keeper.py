"""Who keeps the training state: the devices, or partly the host. What a trainer asks of either."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import jax
import numpy as np

from models.inputs import Batch
from trainer import logical
from trainer.checkpoint import Later, Read
from trainer.program import Program
from trainer.step import Metrics, TrainState

Limits = np.ndarray
"""float32 [2]: of the loss and of the gradient norm."""


class Keeper(Protocol):
    """The training state of one program, from its start or from a checkpoint on."""

    state: TrainState
    """What is on the devices."""

    def initialise(self) -> None:
        """Makes the state before the first step."""

    def restore(self, read: Read) -> None:
        """Takes over all logical arrays, which `read` gives by name, laid out as `abstract` says."""

    def abstract(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding of every logical array, without having a state."""

    def step(self, batch: Batch, *limits: Limits) -> Metrics:
        """Trains on a batch. `limits` are those of `TrainStep.split`, where the program has them."""

    def logical(self) -> Mapping[str, jax.Array | Later]:
        """A copy of the whole state by name; what is made later, is to be made before the next step."""


class OnDevices:
    """Everything is kept by the devices."""

    state: TrainState

    def __init__(self, program: Program) -> None:
        self.program = program

    def initialise(self) -> None:
        self.state = self.program.init()

    def restore(self, read: Read) -> None:
        alone = logical.outgrown(self.program)
        held = {name: logical.as_held(self.program, name, read([name])[name]) for name in alone}
        rest = read([name for name in logical.names(self.program) if name not in held])
        self.state = logical.from_logical(self.program, rest, held)

    def abstract(self) -> dict[str, jax.ShapeDtypeStruct]:
        return logical.abstract_logical(self.program)

    def step(self, batch: Batch, *limits: Limits) -> Metrics:
        self.state, metrics = self.program.step(self.state, batch, *limits)
        return metrics

    def logical(self) -> dict[str, jax.Array | Later]:
        program, state, abstract = self.program, self.state, self.abstract()
        later: dict[str, jax.Array | Later] = {
            name: Later(abstract[name], partial(logical.to_logical_alone, program, state, name))
            for name in logical.outgrown(program)
        }
        return logical.to_logical(program, state, [name for name in abstract if name not in later]) | later
