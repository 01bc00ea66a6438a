"""What a step puts on the wire, read from its traced program: every collective by kind, axes, dtype and size.

In a manual program the collectives are there by name, so this needs no devices and no compiler: bytes are exact for any
mesh, in seconds. Knows nothing of models, ZeRO or what a collective is for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import AbstractMesh

from sharding.mesh import AXES
from trainer.config import Config
from trainer.program import Program

Kind = Literal["all_gather", "reduce_scatter", "all_reduce"]

# JAX's name -> ours, and which of its arrays is the payload.
COLLECTIVES: dict[str, tuple[Kind, Literal["operand", "result"]]] = {
    "all_gather": ("all_gather", "result"),
    "all_gather_invariant": ("all_gather", "result"),
    "reduce_scatter": ("reduce_scatter", "operand"),
    "psum": ("all_reduce", "operand"),
    "psum_invariant": ("all_reduce", "operand"),
    "pmax": ("all_reduce", "operand"),
    "pmin": ("all_reduce", "operand"),
}
# These name mesh axes and send nothing.
SILENT = ("pvary", "axis_index", "shard_map")


@dataclass(frozen=True, order=True)
class Transfer:
    """One collective that every device takes part in, `count` times a step.

    `elements` is the payload, per device and time: the whole gathered array of an all-gather, the whole array before
    a reduce-scatter, the array of an all-reduce.
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
        rounds = 2 if self.kind == "all_reduce" else 1
        return rounds * self.payload * (self.devices - 1) / self.devices


def trace_step(config: Config) -> ClosedJaxpr:
    """The train step of a config, no mesh axis of which is -1, on as many devices as it asks for. None is needed."""
    mesh: Any = AbstractMesh(tuple(config.mesh.sizes.values()), AXES)
    program = Program(config, mesh)
    step: Any = program.step
    return step.trace(program.abstract_state(), program.abstract_batch()).jaxpr


def wire(program: ClosedJaxpr) -> list[Transfer]:
    """Everything one run of `program` exchanges, equal collectives counted together, in order.

    What the program computes and never uses is left out, as the compiler does.

    Raises:
        NotImplementedError: a collective that has no rule here, or whose number is known only when the program runs.
    """
    counts: Counter[Transfer] = Counter()
    for transfer, times in _walk(used(program), {}):
        counts[transfer] += times
    return sorted(Transfer(t.kind, t.axes, t.devices, t.dtype, t.elements, count) for t, count in counts.items())


def used(program: ClosedJaxpr) -> Jaxpr:
    """The part of a program that its results depend on."""
    return dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))[0]


def within(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs inside of an equation: bodies of loops and branches, calls, recomputed and manual regions."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def scan_carry(equation: JaxprEqn) -> tuple[int, int]:
    """Of a scan's inputs: how many come before the carry, and how many are the carry.

    Told by the shapes, as releases of JAX name it differently: what is scanned over has one dim less inside.
    """
    body = equation.params["jaxpr"].jaxpr

    def num_alike(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        return sum(a.aval.ndim == b.aval.ndim for a, b in zip(outside, inside, strict=True))

    carry = num_alike(equation.outvars, body.outvars)
    return num_alike(equation.invars, body.invars) - carry, carry


def _walk(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Iterator[tuple[Transfer, int]]:
    """(one collective, how often it runs), `sizes` being those of the mesh axes around `jaxpr`."""
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name in COLLECTIVES:
            yield from ((transfer, 1) for transfer in _transfers(equation, sizes))
        elif name not in SILENT and (axes := _axes(params)):
            raise NotImplementedError(f"no rule for what {name} over {axes} sends")
        inner_sizes = dict(params["mesh"].shape) if name == "shard_map" else sizes
        for inner in within(equation):
            for transfer, times in _walk(inner, inner_sizes):
                if name in ("cond", "while"):
                    raise NotImplementedError(f"{transfer.kind} inside of {name}: how often is known only when it runs")
                yield transfer, times * (params["length"] if name == "scan" else 1)


def _transfers(equation: JaxprEqn, sizes: Mapping[str, int]) -> Iterator[Transfer]:
    kind, payload = COLLECTIVES[equation.primitive.name]
    assert equation.params.get("axis_index_groups") is None, "groups within an axis are not a mesh's"
    axes = _axes(equation.params)
    devices = math.prod(sizes[axis] for axis in axes)
    for variable in equation.outvars if payload == "result" else equation.invars:
        array: Any = variable.aval
        yield Transfer(kind, axes, devices, str(array.dtype), math.prod(array.shape))


def _axes(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The mesh axes that an equation names."""
    named = params.get("axis_name", params.get("axes", ()))
    return tuple(axis for axis in (named if isinstance(named, tuple) else (named,)) if isinstance(axis, str))
