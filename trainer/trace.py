"""The train step as a traced program, and how often each of its equations runs.

In a manual program everything is there by name and size, for any mesh, without devices and without a compiler. Knows
nothing of what an equation does: see `trainer.wire` and `trainer.flops`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import AbstractMesh

from sharding.mesh import AXES
from sharding.pipeline.executor import Pipeline
from trainer.config import Config
from trainer.program import Program

KERNEL = "pallas_call"


class Trace(NamedTuple):
    """One train step, and what its branches depend on."""

    program: ClosedJaxpr
    pipeline: Pipeline | None
    """What runs the layers of several stages."""

    @property
    def shares(self) -> list[Mapping[str, Fraction]]:
        """Of each pipeline stage: how often it takes a branch, by the name of the branch's program."""
        pipeline = self.pipeline
        return [pipeline.shares(stage) for stage in range(pipeline.stages.num_stages)] if pipeline else [{}]


class Visit(NamedTuple):
    """An equation, and how often one run of the program comes to it."""

    equation: JaxprEqn
    sizes: Mapping[str, int]
    """Of the mesh axes around it."""
    times: Fraction | None
    """None where that is known only when the program runs."""


def trace_step(config: Config) -> Trace:
    """The train step of a config, no mesh axis of which is -1, on as many devices as it asks for. None is needed."""
    mesh: Any = AbstractMesh(tuple(config.mesh.sizes.values()), AXES)
    program = Program(config, mesh)
    step: Any = program.step
    traced = step.trace(*program.abstract_arguments())
    return Trace(traced.jaxpr, program.pipeline)


def used(program: ClosedJaxpr) -> Jaxpr:
    """The part of a program that its results depend on."""
    return dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))[0]


def visits(program: ClosedJaxpr, shares: Mapping[str, Fraction]) -> Iterator[Visit]:
    """Every equation that results depend on, those of loops, calls and branches included, as a stage runs them.

    A kernel is one equation: how often those inside of it run depends on its grid. A branch counts as often as `shares`
    says by the name of its program.
    """
    return _visits(used(program), {}, Fraction(1), shares)


def _visits(
    jaxpr: Jaxpr, sizes: Mapping[str, int], times: Fraction | None, shares: Mapping[str, Fraction]
) -> Iterator[Visit]:
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == KERNEL and not _is_used(equation, jaxpr):
            continue
        yield Visit(equation, sizes, times)
        if name == KERNEL:
            continue
        inner_sizes = dict(params["mesh"].shape) if name == "shard_map" else sizes
        for inner in within(equation):
            factor: Fraction | None = Fraction(1)
            if name == "scan":
                factor = Fraction(params["length"])
            elif name in ("cond", "while"):
                factor = _share(inner, shares)
            inner_times = None if factor is None or times is None else times * factor
            yield from _visits(inner, inner_sizes, inner_times, shares)


def _is_used(kernel: JaxprEqn, jaxpr: Jaxpr) -> bool:
    """JAX before 0.12 keeps a kernel of which nobody takes the results; XLA does not."""
    taken = {id(variable) for reader in jaxpr.eqns for variable in reader.invars} | set(map(id, jaxpr.outvars))
    return any(id(result) in taken for result in kernel.outvars)


def _share(branch: Jaxpr, shares: Mapping[str, Fraction]) -> Fraction | None:
    names = [str(equation.params["name"]) for equation in branch.eqns if equation.primitive.name in ("jit", "pjit")]
    return next((shares[name] for name in names if name in shares), None)


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
