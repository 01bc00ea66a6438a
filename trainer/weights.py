"""The weights alone, as a forward pass takes them: what evaluation and generation need of a checkpoint.

No master weight or moment is read, wherever training keeps them, so that a run can be measured while it trains. Knows
nothing of who keeps a state that trains.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from sharding.streamed import DEVICE, HOST, moved
from trainer import logical
from trainer.checkpoint import Checkpoints
from trainer.logical import Arrays
from trainer.offload.config import OffloadConfig
from trainer.program import Program

_PREFIX = "parameters."  # of their logical names


def restore_weights(program: Program, checkpoints: Checkpoints, step: int) -> Arrays:
    """By name, in the dtype that is computed with, as the devices hold them; streamed ones are in host memory.

    Raises:
        ConfigError: there is no complete checkpoint of this step, or it is one of another model or optimizer.
    """
    saved = abstract_saved(program)
    for name in program.streamed:
        array = saved[_PREFIX + name]
        saved[_PREFIX + name] = array.update(sharding=array.sharding.with_memory_kind(HOST))
    alone = logical.outgrown(program)
    together = [name for name in program.layouts if _PREFIX + name not in alone]

    def read(names: list[str]) -> Arrays:
        logical_names = [_PREFIX + name for name in names]
        arrays = checkpoints.restore(step, saved, logical_names, np.dtype(program.zero.compute))
        return {name: _stored(program, name, arrays.pop(_PREFIX + name)) for name in names}

    weights = read(together)
    for name in program.layouts:
        weights |= {} if name in weights else read([name])
    return weights


def abstract_saved(program: Program) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape, dtype and sharding of each array of a checkpoint, if the devices kept them all."""
    config = dataclasses.replace(program.config, offload=OffloadConfig())
    return dict(logical.abstract_logical(Program(config, program.mesh)))


def _stored(program: Program, name: str, array: jax.Array) -> jax.Array:
    """A logical array with its padding, where it stays."""
    if program.layouts[name].is_logical:
        return array
    stored = logical.as_stored(program, name, moved(array, DEVICE))
    return jax.device_put(stored, program.on_host(program.layouts[name].spec)) if name in program.streamed else stored
