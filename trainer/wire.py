"""What a step puts on the wire, read from its traced program: every collective by kind, axes, dtype and size.

In a manual program the collectives are there by name, so this needs no devices and no compiler: bytes are exact for any
mesh, in seconds. Knows nothing of models, ZeRO or what a collective is for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from trainer.trace import Trace, visits

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "permute"]

# JAX's name -> ours, and which of its arrays is the payload.
COLLECTIVES: dict[str, tuple[Kind, Literal["operand", "result"]]] = {
    "all_gather": ("all_gather", "result"),
    "all_gather_invariant": ("all_gather", "result"),
    "reduce_scatter": ("reduce_scatter", "operand"),
    "psum": ("all_reduce", "operand"),
    "psum_invariant": ("all_reduce", "operand"),
    "pmax": ("all_reduce", "operand"),
    "pmin": ("all_reduce", "operand"),
    "ppermute": ("permute", "operand"),
}
# These name mesh axes and send nothing.
SILENT = ("pvary", "axis_index", "shard_map")
NO_SHARES: Mapping[str, Fraction] = MappingProxyType({})


@dataclass(frozen=True, order=True)
class Transfer:
    """One collective that every device takes part in, `count` times a step.

    `elements` is the payload, per device and time: the whole gathered array of an all-gather, the whole array before
    a reduce-scatter, the array of an all-reduce, what goes to a neighbour in a permute.
    """

    kind: Kind
    axes: tuple[str, ...]
    devices: int
    """How many exchange with each other: the product of the axes' sizes."""
    dtype: str
    elements: int
    count: int = 1

    @property
    def payload(self) -> int:
        """Bytes a step, per device, before the share that stays at home is taken off."""
        return self.count * self.elements * jnp.dtype(self.dtype).itemsize

    @property
    def link_bytes(self) -> float:
        """Bytes a step that each device sends around a ring: an all-reduce is a reduce-scatter and an all-gather."""
        if self.kind == "permute":
            return self.payload
        rounds = 2 if self.kind == "all_reduce" else 1
        return rounds * self.payload * (self.devices - 1) / self.devices


def wire(program: ClosedJaxpr, shares: Mapping[str, Fraction] = NO_SHARES) -> list[Transfer]:
    """Everything one run of `program` exchanges on a device, equal collectives counted together, in order.

    What the program computes and never uses is left out, as the compiler does. `shares` are those of the device's
    pipeline stage (`trainer.trace.Trace`).

    Raises:
        NotImplementedError: a collective that has no rule here, or whose number is known only when the program runs.
    """
    counts: dict[Transfer, Fraction] = defaultdict(Fraction)
    for equation, sizes, times in visits(program, shares):
        for transfer in _transfers(equation, sizes):
            if times is None:
                raise NotImplementedError(f"{transfer.kind} in a branch or loop: how often is known only when it runs")
            counts[transfer] += times
    assert all(times.denominator == 1 for times in counts.values()), "part of a collective: some share is wrong"
    return sorted(
        Transfer(t.kind, t.axes, t.devices, t.dtype, t.elements, int(count)) for t, count in counts.items() if count
    )


def busiest(trace: Trace) -> list[Transfer]:
    """What a device sends in a step, on the pipeline stage that sends most (one stage there is, without pipelines)."""
    return max(
        (wire(trace.program, shares) for shares in trace.shares), key=lambda sent: sum(t.link_bytes for t in sent)
    )


def _transfers(equation: JaxprEqn, sizes: Mapping[str, int]) -> Iterator[Transfer]:
    """What an equation itself sends."""
    name, axes = equation.primitive.name, _axes(equation.params)
    if name not in COLLECTIVES:
        if axes and name not in SILENT:
            raise NotImplementedError(f"no rule for what {name} over {axes} sends")
        return
    kind, payload = COLLECTIVES[name]
    assert equation.params.get("axis_index_groups") is None, "groups within an axis are not a mesh's"
    devices = math.prod(sizes[axis] for axis in axes)
    for variable in equation.outvars if payload == "result" else equation.invars:
        array: Any = variable.aval
        yield Transfer(kind, axes, devices, str(array.dtype), math.prod(array.shape))


def _axes(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The mesh axes that an equation names."""
    named = params.get("axis_name", params.get("axes", ()))
    return tuple(axis for axis in (named if isinstance(named, tuple) else (named,)) if isinstance(axis, str))
