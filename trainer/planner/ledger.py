"""The ledger against the compiler: what a step sends, multiplies and holds, as it is traced and as XLA compiles it.

Each difference has a cause, and an amount that is counted in the compiled program, not what happens to be left: what no
cause accounts for is unexplained. Knows no closed forms and no seconds, and prints nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from sharding.layout import Layout
from trainer.description import parameters
from trainer.flops import flops, kernels
from trainer.planner.comparison import REPEATED, Line, is_repeated
from trainer.planner.compiled import CompiledStep
from trainer.planner.compiled_flops import kernels as compiled_kernels
from trainer.planner.compiled_flops import matmuls
from trainer.planner.hlo import Array, HloError, Instruction, Module
from trainer.planner.ledger_wire import WireLine, compare_wire
from trainer.program import Program

PADDED = "zeros that XLA pads a sum of products with, to split it"
UNUSED = "not used, and left out"
COUNTER = "the optimizer's counter of steps"
MASTER, MOMENTS, BATCH = "state.parameters", "state.optimizer", "batch"
"""How the names of a step's arguments begin."""


@dataclass(frozen=True)
class Work:
    """What a device of one pipeline stage does in a step."""

    wire: list[WireLine]
    flops: Line
    """Of matmuls outside of kernels."""
    kernels: list[Line]
    """How often each of Pallas' runs."""

    @property
    def lines(self) -> list[Line]:
        return [*self.wire, self.flops, *self.kernels]

    @property
    def is_explained(self) -> bool:
        return not any(line.unexplained for line in self.lines)


@dataclass(frozen=True)
class Ledger:
    work: Work
    """Of the stage that sends most, or of one that is not explained."""
    stages: int
    """That were compared: all that do not do the same."""
    held: list[Line]
    """Bytes: arguments of the step, and what loops carry."""

    @property
    def unexplained(self) -> list[Line]:
        return [line for line in (*self.work.lines, *self.held) if line.unexplained]


def compare(step: CompiledStep) -> Ledger:
    """All of it.

    Raises:
        HloError: the compiled program has something for which there is no rule.
    """
    if step.program.streamed and step.program.accumulation == 2:
        raise HloError(
            "of two micro-batches with streamed layers, XLA merges the loop over the second with the first, and sends "
            "once what both send; compare another number of them"
        )
    distinct = {tuple(shares.items()): shares for shares in step.trace.shares}.values()
    works = [_work(step, shares) for shares in distinct]
    odd = [work for work in works if not work.is_explained]
    arguments = list(step.module.entry.parameters.values())
    return Ledger(
        work=max(odd or works, key=lambda work: sum(line.traced for line in work.wire)),
        stages=len(works),
        held=[
            _master(step.program, arguments),
            _moments(step.program, arguments),
            _batch(step.program, arguments),
            *_gradients(step.program, step.module),
        ],
    )


def _work(step: CompiledStep, shares: Mapping[str, Fraction]) -> Work:
    program, mesh = step.trace.program, dict(step.program.mesh.shape)
    return Work(
        wire=compare_wire(program, step.module, mesh, shares),
        flops=_flops(program, step.module, shares),
        kernels=list(_kernels(program, step.module, shares)),
    )


def _flops(program: ClosedJaxpr, module: Module, shares: Mapping[str, Fraction]) -> Line:
    found = list(matmuls(module, shares))
    line = Line(
        name="FLOPs of matmuls",
        traced=flops(program, shares),
        compiled=sum(matmul.times * matmul.flops for matmul in found),
    )
    again, once = (
        [matmul for matmul in found if is_repeated(matmul.executed) == repeated] for repeated in (True, False)
    )
    line = line.with_cause(REPEATED, sum(matmul.times * matmul.flops for matmul in again))
    return line.with_cause(PADDED, sum(matmul.times * matmul.padding for matmul in once))


def _kernels(program: ClosedJaxpr, module: Module, shares: Mapping[str, Fraction]) -> Iterator[Line]:
    traced, compiled = kernels(program, shares), compiled_kernels(module, shares)
    for name in sorted({*traced, *compiled}):
        yield Line(name=f"runs of the kernel {name}", traced=traced[name], compiled=compiled[name])


def _master(program: Program, arguments: Sequence[Instruction]) -> Line:
    """Of what is offloaded: its copy, wherever it stays, but in files."""
    itemsize = jnp.dtype(program.zero.compute).itemsize
    sizes = {
        name: math.prod(layout.shard_shape) * (itemsize if name in program.offloaded else 4)
        for name, layout in program.layouts.items()
        if name not in program.in_file
    }
    name = "weights" if program.offloaded else "master weights"
    return Line(name=name, traced=sum(sizes.values()), compiled=_num_bytes(arguments, MASTER))


def _moments(program: Program, arguments: Sequence[Instruction]) -> Line:
    masters = 4 * sum(
        math.prod(layout.shard_shape) for name, layout in program.layouts.items() if name not in program.offloaded
    )
    planned = sum(parameter.optimizer for parameter in parameters(program.config)) - masters
    counters = [one for one in arguments if one.op_name.startswith(MOMENTS) and one.results[0].dims == ()]
    line = Line(name="moments", traced=planned, compiled=_num_bytes(arguments, MOMENTS))
    return line.with_cause(COUNTER, _num_bytes(counters, MOMENTS))


def _batch(program: Program, arguments: Sequence[Instruction]) -> Line:
    shapes = program.abstract_batch()._asdict()
    planned = {
        name: math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for name, leaf in shapes.items()
    }
    used = {one.op_name for one in arguments}
    unused = sum(size for name, size in planned.items() if f"{BATCH}.{name}" not in used)
    line = Line(name="batch", traced=sum(planned.values()), compiled=_num_bytes(arguments, BATCH))
    return line.with_cause(UNUSED, -unused)


def _num_bytes(arguments: Sequence[Instruction], begin: str) -> int:
    """Of the arguments whose names begin so."""
    return sum(array.num_bytes for one in arguments if one.op_name.startswith(begin) for array in one.results)


def _gradients(program: Program, module: Module) -> Iterator[Line]:
    """Their sum over micro-batches: float32 arrays of their sizes, of those that a loop carries and changes.

    None where no loop carries them, and where they are cannot be told: with one micro-batch, or where layers are
    streamed, when the first is not in the loop, with two.
    """
    in_loop = program.accumulation - (1 if program.streamed else 0)
    if in_loop <= 1 and program.pipeline is None:
        return
    layouts = [layout for name, layout in program.layouts.items() if name not in program.in_file]
    planned = Counter(4 * math.prod(_summed(layout, program)) for layout in layouts)
    loops = (one for part in module.computations.values() for one in part.instructions if one.opcode == "while")
    summed = max((_in_float32(_changed(module, loop)) & planned for loop in loops), key=_total)
    yield Line(name="gradients, summed", traced=_total(planned), compiled=_total(summed))


def _summed(layout: Layout, program: Program) -> tuple[int, ...]:
    """The shape of a gradient's sum: scattered, where that is done for each micro-batch."""
    is_scattered = layout.zero_dim is not None and program.zero.stage >= 2
    return layout.shard_shape if is_scattered else layout.block_shape


def _changed(module: Module, loop: Instruction) -> Iterator[Array]:
    """Of what a loop carries, what its body does not hand on as it was."""
    _, body = (module.computations[name] for name in loop.runs)
    for index, (name, array) in enumerate(zip(body.root.operands, loop.results, strict=True)):
        made = body.by_name[name]
        if made.opcode != "get-tuple-element" or made.attributes["index"] != str(index):
            yield array


def _in_float32(arrays: Iterable[Array]) -> Counter[int]:
    return Counter(array.num_bytes for array in arrays if array.dtype == "f32")


def _total(sizes: Counter[int]) -> int:
    return sum(size * times for size, times in sizes.items())
