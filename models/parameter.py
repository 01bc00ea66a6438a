"""How a model declares a parameter: its logical shape, the names of its dims, and how it starts.

The dims' names are what sharding goes by (`sharding.layout.RULES`); nothing here knows a mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True)
class Init:
    """Where a parameter starts: normal with mean 0 and standard deviation `std`, plus `value`."""

    std: float = 0.0
    value: float = 0.0


ZEROS = Init()
ONES = Init(value=1.0)


@dataclass(frozen=True)
class Declaration:
    """One parameter: logical shape, one logical axis name a dim, and its start."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Init

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: to matrices, not to norms and biases (whose init has no spread)."""
        return self.init.std > 0


def parameter(shape: tuple[int, ...], axes: tuple[str, ...], init: Init) -> nnx.Param:
    """A float32 parameter with its declaration as metadata. Modules are built under `nnx.eval_shape`: no memory."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), declaration=Declaration(shape, axes, init))
