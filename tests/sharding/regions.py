"""What the tests of sharding share: a small mesh, a manual region over it, and the equations of a traced program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import Mesh, PartitionSpec

from sharding.mesh import AXES

COLLECTIVES = {"psum", "psum_invariant", "pmax", "all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all"}


def sizes(**axes: int) -> dict[str, int]:
    """All axes of a mesh, those not named of size 1."""
    return {axis: axes.get(axis, 1) for axis in AXES}


def make(**axes: int) -> Mesh:
    """A mesh of virtual devices."""
    shape = tuple(sizes(**axes).values())
    return Mesh(np.asarray(jax.devices()[: np.prod(shape)]).reshape(shape), AXES)


def manual(mesh: Mesh, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function` of one device's blocks, jitted. Specs never name axes of size 1, as layouts do not."""
    in_specs, out_specs = jax.tree.map(
        lambda spec: PartitionSpec(*(_live(entry, mesh) for entry in spec)),
        (in_specs, out_specs),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True))


def _live(entry: str | tuple[str, ...] | None, mesh: Mesh) -> tuple[str, ...] | None:
    axes = (entry,) if isinstance(entry, str) else entry or ()
    return tuple(axis for axis in axes if mesh.shape[axis] > 1) or None


def everywhere(mesh: Mesh, function: Callable[[], jax.Array]) -> np.ndarray:
    """What each device gets, [pipeline, replica, data, expert, context, tensor, ...]."""
    ones = (1,) * len(AXES)

    def local() -> jax.Array:
        x = function()
        missing = tuple(axis for axis in AXES if mesh.shape[axis] > 1 and axis not in jax.typeof(x).mat.varying)
        return (jax.lax.pcast(x, missing, to="varying") if missing else x).reshape(*ones, *x.shape)

    return np.asarray(manual(mesh, local, (), PartitionSpec(*AXES))())


def equations(program: ClosedJaxpr | Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation of a program, those inside of loops, calls and regions too."""
    for equation in (program.jaxpr if isinstance(program, ClosedJaxpr) else program).eqns:
        yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                if isinstance(item, ClosedJaxpr | Jaxpr):
                    yield from equations(item)


def collectives_of(function: Callable[..., Any], *arguments: Any) -> list[tuple[str, str]]:
    """(kind, dtype) of every collective in the traced function, in the program's order."""
    return [
        (equation.primitive.name, str(equation.invars[0].aval.dtype))
        for equation in equations(jax.make_jaxpr(function)(*arguments))
        if equation.primitive.name in COLLECTIVES
    ]
