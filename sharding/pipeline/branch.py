"""Work that only some stages do, or only at some ticks.

Such work is a program of its own, under a name by which the traced step can be read: how often a branch is taken cannot
be seen in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

LAYER = "pipeline_layer"
"""A layer, where shorter chunks lack some."""


def unit_name(kind: str, phase: int) -> str:
    """A unit of a schedule, where not every stage has one at every tick of the phase."""
    return f"pipeline_{kind}_{phase}"


def branch(name: str, condition: jax.Array, work: Callable[..., Any], otherwise: Callable[..., Any], *args: Any) -> Any:
    """`work(*args)` where `condition` holds on this device, `otherwise(*args)` elsewhere; bool scalar.

    Collectives inside of `work` are only for devices that all have the same condition.
    """

    def named(*args: Any) -> Any:
        return work(*args)

    named.__name__ = name
    return jax.lax.cond(condition, jax.jit(named), otherwise, *args)
