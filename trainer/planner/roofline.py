"""How long an instruction of a compiled program takes a GPU: its FLOPs or its bytes, whichever takes longer.

What a kernel takes besides is not counted, so what is hidden behind it is rather more than told. Knows nothing of what
is sent, or of what an instruction is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from trainer.planner.compiled_flops import kernel_name
from trainer.planner.gpu import Gpu
from trainer.planner.hlo import BITS, Computation, Instruction, Module

# These move nothing: they name what is there already, or are part of what is sent.
FREE = (
    "add-dependency",
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
)
SLICES = ("dynamic-slice", "gather", "slice")
"""They read as much as they make, however large what they take it from."""
UPDATE = "dynamic-update-slice"
"""It writes its second operand into its first, in place."""
VIEWS = ("bitcast", "convert", "copy", "reshape", "transpose")
"""In a fusion: another form of the same array, never in memory."""


def work(
    module: Module, computation: Computation, instruction: Instruction, gpu: Gpu, kernels: Mapping[str, float]
) -> float:
    """Seconds of one instruction that runs no loop and no branch. What is begun and ended elsewhere takes none.

    Args:
        kernels: FLOPs of one run of each Pallas kernel, which all are attention's.
    """
    if instruction.opcode in FREE or instruction.phase is not None:
        return 0.0
    multiplying = sum(flops / gpu.flops(itemsize) for flops, itemsize in _matmuls(module, computation, instruction))
    if name := kernel_name(instruction):
        multiplying += kernels[name] / (gpu.flops(_itemsize(computation, instruction)) * gpu.efficiency.attention)
    return max(multiplying, _moved(module, computation, instruction) / gpu.bytes_per_second)


def _itemsize(computation: Computation, kernel: Instruction) -> int:
    """Bytes of an element of the largest array that a kernel is given."""
    largest = max(computation.taken(kernel), key=lambda array: array.elements)
    return BITS[largest.dtype] // 8


def _matmuls(module: Module, computation: Computation, instruction: Instruction) -> Iterator[tuple[int, int]]:
    """FLOPs, and bytes of an operand's element, of each matmul in it."""
    if instruction.opcode == "dot":
        left, right = computation.taken(instruction)
        contracted = math.prod(left.dims[dim] for dim in instruction.integers("lhs_contracting_dims"))
        yield 2 * instruction.results[0].elements * contracted, max(BITS[left.dtype], BITS[right.dtype]) // 8
    for name in instruction.runs:
        inner = module.computations[name]
        for one in inner.instructions:
            yield from _matmuls(module, inner, one)


def _moved(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Bytes that are read and written."""
    if instruction.opcode == "fusion":
        return _fused(module.computations[instruction.runs[0]])
    written = sum(array.num_bytes for array in instruction.results)
    if instruction.opcode in SLICES:
        return 2 * written
    if instruction.opcode == UPDATE:
        return 2 * _update(computation, instruction)
    return written + sum(array.num_bytes for array in computation.taken(instruction))


def _fused(computation: Computation) -> int:
    """Bytes that a fusion reads and writes: of what it only slices, the slices."""
    root = computation.root
    made = [computation.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    return sum(_written(computation, one) for one in made) + sum(
        _read(computation, one) for one in computation.parameters.values()
    )


def _written(computation: Computation, made: Instruction) -> int:
    source = made
    while source.opcode in VIEWS:
        source = computation.by_name[source.operands[0]]
    if source.opcode == UPDATE:
        return _update(computation, source)
    return sum(array.num_bytes for array in made.results)


def _read(computation: Computation, parameter: Instruction) -> int:
    read = [_used(use, name) for use, name in _uses(computation, parameter.name)]
    whole = sum(array.num_bytes for array in parameter.results)
    return whole if None in read or not read else sum(part for part in read if part is not None)


def _uses(computation: Computation, name: str) -> Iterator[tuple[Instruction, str]]:
    """What takes an array, in whatever form it is by then, and the name of that form."""
    for one in computation.instructions:
        if name in one.operands:
            if one.opcode in VIEWS and not one.is_root:
                yield from _uses(computation, one.name)
            else:
                yield one, name


def _used(use: Instruction, name: str) -> int | None:
    """Bytes of an array that are read where something takes only a part of it, or only writes into it."""
    if use.operands[0] == name and name not in use.operands[1:]:
        if use.opcode in SLICES:
            return use.results[0].num_bytes
        if use.opcode == UPDATE:
            return 0
    return None


def _update(computation: Computation, instruction: Instruction) -> int:
    return computation.by_name[instruction.operands[1]].results[0].num_bytes
