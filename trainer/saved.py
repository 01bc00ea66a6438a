"""What a layer keeps of a micro-batch for its backward pass, and in which memory, read from the traced step.

Just what the forward scan over the layers stacks is kept. Knows the names of activations, not why they are kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from models.layers import SELECTIVE_NAMES
from trainer.trace import scan_carry, used, within

# To name an array without a name, look at what it was before it was only cast, moved or repeated.
_MOVES = (
    "reduce_precision",
    "convert_element_type",
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "transpose",
    "device_put",
)
_CALLS = ("remat2", "jit", "pjit", "cond")

Tier = Literal["device", "host"]
"""Where an array waits."""


@dataclass(frozen=True)
class Activation:
    """What each layer keeps of a micro-batch for its backward pass: `count` arrays of this kind, on each device."""

    name: str
    """As a recompute policy calls it; for what has no name, the operation that made it."""
    shape: tuple[int, ...]
    dtype: str
    count: int
    bytes: int
    """Of all of them, in one layer."""
    tier: Tier


def saved_by_layer(step: ClosedJaxpr, layers: int) -> Iterator[Activation]:
    """What each of `layers` layers, which are scanned over, keeps on a device."""
    scans = (equation for equation in _equations(used(step)) if _is_forward(equation, layers))
    for scan in scans:
        block, (first, carried) = scan.params["jaxpr"].jaxpr, scan_carry(scan)
        if stacked := block.outvars[carried:]:
            break
    inputs = block.invars[first:][:carried]
    saved = Counter(
        (_name(variable, block, inputs), variable.aval.shape, str(variable.aval.dtype), _tier(variable))
        for variable in stacked
    )
    for (name, shape, dtype, tier), count in saved.items():
        yield Activation(name, shape, dtype, count, count * math.prod(shape) * jnp.dtype(dtype).itemsize, tier)


def _tier(variable: Any) -> Tier:
    return "host" if variable.aval.memory_space == jax.memory.Space.Host else "device"


def _is_forward(equation: JaxprEqn, layers: int) -> bool:
    """Whether it is a scan over the layers of the forward pass, by the names in it."""
    if equation.primitive.name != "scan" or equation.params["length"] != layers or equation.params["reverse"]:
        return False
    inner = _equations(equation.params["jaxpr"].jaxpr)
    return any(e.primitive.name == "name" and e.params["name"] in SELECTIVE_NAMES for e in inner)


def _equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Its equations, and those of the programs within them."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in within(equation):
            yield from _equations(inner)


def _name(variable: Any, block: Jaxpr, inputs: list[Var]) -> str:
    """What an array that a block gives is called."""
    origin = _origin(variable, block)
    if isinstance(origin, str):
        return origin
    return "input" if origin in inputs else "weight"


def _origin(variable: Any, program: Jaxpr) -> str | Var:
    """The name of an array in a program, or which input it is, but for casts and the like."""
    made = {result: equation for equation in program.eqns for result in equation.outvars}
    while (equation := made.get(variable)) is not None:
        name = equation.primitive.name
        if name in _MOVES:
            variable = next(operand for operand in equation.invars if isinstance(operand, Var))
        elif name in _CALLS:
            inner = list(within(equation))[-1]  # of a branch: what is done where the condition holds
            origin = _origin(inner.outvars[equation.outvars.index(variable)], inner)
            if isinstance(origin, str):
                return origin
            variable = equation.invars[-len(inner.invars) :][inner.invars.index(origin)]
        else:
            return str(equation.params.get("name") or name)
    return variable
