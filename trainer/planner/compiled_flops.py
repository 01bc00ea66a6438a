"""The matmuls of a compiled step, by their shapes and as often as they run: what `trainer.flops` is to the traced step.

For GPUs that are not there XLA has them all inside of fusions, as kernels of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from trainer.offload.xla_buffers import ON_GPU
from trainer.planner.executed import Executed, executed
from trainer.planner.hlo import Computation, HloError, Instruction, Module

KERNEL = '"__gpu$xla.gpu.triton"'
"""What calls a Pallas kernel."""
MOVES = ('"AllocateBuffer"', f'"{ON_GPU}"')
"""What makes room in host memory, and what calls for a layer that is in a file."""


@dataclass(frozen=True)
class Matmul:
    """One, as it stands in the program. A multiplication and an addition are two FLOPs."""

    executed: Executed
    flops: int
    """Each time."""
    padding: int
    """Those of them with zeros that XLA adds, to split the sum of products into equal parts that are worked at once."""

    @property
    def times(self) -> int:
        """In a step."""
        times = self.executed.times
        assert times is not None
        return int(times)


def matmuls(module: Module, shares: Mapping[str, Fraction]) -> Iterator[Matmul]:
    """Every matmul that a device runs in a step, without those inside of Pallas kernels.

    Args:
        shares: see `trainer.planner.executed.executed`.

    Raises:
        HloError: an instruction that may be a matmul and has no rule here, or whose number is known only when the
            program runs.
    """
    for one in executed(module, shares):
        instruction = one.instruction
        moves = instruction.attributes.get("custom_call_target") in MOVES
        if instruction.opcode in ("convolution", "custom-call") and not (moves or kernel_name(instruction)):
            raise HloError(f"no rule for the FLOPs of {instruction.name}, a {instruction.opcode}")
        if instruction.opcode != "dot":
            continue
        if one.times is None or one.times.denominator != 1:
            raise HloError(f"{instruction.name} in a branch or loop: how often is known only when it runs")
        left = one.computation.by_name[instruction.operands[0]].results[0]
        contracted = math.prod(left.dims[dim] for dim in instruction.integers("lhs_contracting_dims"))
        flops = 2 * instruction.results[0].elements * contracted
        yield Matmul(one, flops, _padding(module, one, flops))


def kernels(module: Module, shares: Mapping[str, Fraction]) -> Counter[str]:
    """How often a device runs each Pallas kernel in a step, by the kernel's name.

    Raises:
        HloError: how often is known only when the program runs.
    """
    runs: Counter[str] = Counter()
    for one in executed(module, shares):
        if name := kernel_name(one.instruction):
            if one.times is None or one.times.denominator != 1:
                raise HloError(f"{one.instruction.name} in a branch or loop: how often is known only when it runs")
            runs[name] += int(one.times)
    return runs


def kernel_name(instruction: Instruction) -> str | None:
    """Of the Pallas kernel that an instruction runs, if it runs one."""
    if instruction.attributes.get("custom_call_target") != KERNEL:
        return None
    return instruction.op_name.split("/")[-2]


def _padding(module: Module, one: Executed, flops: int) -> int:
    """FLOPs with zeros that both operands of a matmul in parts are padded with, along the dim that is summed over."""
    if not one.instruction.integers("lhs_batch_dims"):
        return 0
    caller, operands = one.caller, one.computation.by_name
    parts = {_filled(module, one.computation, operands[name], caller) for name in one.instruction.operands}
    return int(flops * (1 - parts.pop())) if len(parts) == 1 else 0


def _filled(module: Module, computation: Computation, made: Instruction, caller: Executed | None) -> Fraction:
    """Which part of an array is not zeros that it is padded with just before."""
    if made.opcode == "pad":
        source = computation.by_name[made.operands[0]]
        return Fraction(source.results[0].elements, made.results[0].elements)
    if made.opcode == "bitcast":
        return _filled(module, computation, computation.by_name[made.operands[0]], caller)
    if made.opcode == "fusion" and made.phase is None:  # what arrives from elsewhere is copied, not padded
        inner = module.computations[made.runs[0]]
        return _filled(module, inner, inner.root, None)
    if made.opcode == "parameter" and caller is not None and caller.instruction.opcode == "fusion":
        given = caller.computation.by_name[caller.instruction.operands[int(made.literal)]]
        return _filled(module, caller.computation, given, None)
    return Fraction(1)
