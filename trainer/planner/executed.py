"""How often a device runs each instruction of a compiled program: loops by their length, branches by a stage's shares.

What `trainer.trace` is to a traced step, this is to a compiled one. Knows nothing of what an instruction does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from trainer.planner.hlo import RUNS, Computation, HloError, Instruction, Module

_BRANCH = re.compile(r"/cond/branch_\d+_fun/jit\((\w+)\)")
_INSIDE = re.compile(r"/branch_\d+_fun\b")


@dataclass(frozen=True)
class Executed:
    """An instruction, and how often a device runs it."""

    computation: Computation
    instruction: Instruction
    times: Fraction | None
    """In one run of the program; None where that is known only when it runs."""
    caller: Executed | None
    """The fusion, loop, conditional or call that it is within; None in the program itself."""

    @property
    def callers(self) -> Iterator[Executed]:
        """All that it is within, the innermost first."""
        caller = self.caller
        while caller is not None:
            yield caller
            caller = caller.caller

    @property
    def loops(self) -> tuple[str, ...]:
        """The names of the while instructions that it is within, the outermost first."""
        return tuple(one.instruction.name for one in self.callers if one.instruction.opcode == "while")[::-1]


def executed(module: Module, shares: Mapping[str, Fraction]) -> Iterator[Executed]:
    """Every instruction, those of fusions, loops, calls and branches included, in the order in which they are issued.

    A branch runs as often as `shares` says by the name that its program had in the traced step (see
    `trainer.trace.Trace`).

    Raises:
        HloError: the two branches of a conditional have different programs of `shares`.
    """
    yield from _executed(module, module.entry, Fraction(1), None, shares)


def _executed(
    module: Module,
    computation: Computation,
    times: Fraction | None,
    caller: Executed | None,
    shares: Mapping[str, Fraction],
) -> Iterator[Executed]:
    for instruction in computation.instructions:
        one = Executed(computation, instruction, times, caller)
        yield one
        if instruction.opcode not in RUNS:
            continue
        factors = _factors(module, instruction, shares)
        for name, factor in zip(instruction.runs, factors, strict=True):
            product = None if factor is None or times is None else times * factor
            yield from _executed(module, module.computations[name], product, one, shares)


def _factors(module: Module, instruction: Instruction, shares: Mapping[str, Fraction]) -> list[Fraction | None]:
    """How often each of the computations that an instruction runs is run, for one of its own."""
    runs = instruction.runs
    if instruction.opcode == "while":
        count = instruction.trip_count
        return [None, None] if count is None else [Fraction(count + 1), Fraction(count)]
    if instruction.opcode == "conditional":
        return _branches(module, instruction, shares)
    # What an async instruction runs is run once, by its start.
    return [Fraction(instruction.phase in (None, "start"))] * len(runs)


def _branches(module: Module, conditional: Instruction, shares: Mapping[str, Fraction]) -> list[Fraction | None]:
    """The share of each branch: of the one that was a program of `shares`, and the rest for the other."""
    depth = len(_INSIDE.findall(conditional.op_name))
    names = [_programs(module, branch, depth) & shares.keys() for branch in conditional.runs]
    found = {name for branch in names for name in branch}
    if len(names) != 2 or not found:
        return [None] * len(names)
    if len(found) > 1:
        raise HloError(f"{conditional.name}: its branches run {', '.join(sorted(found))}, not one of them")
    share = shares[found.pop()]
    return [share if branch else 1 - share for branch in names]


def _programs(module: Module, name: str, depth: int) -> set[str]:
    """The programs that jax had in the branch of a conditional, `depth` other branches around it.

    As its own instructions say, if they do: what they run XLA may share with an equal loop of another branch.
    """
    instructions = module.computations[name].instructions
    scopes = [_BRANCH.findall(instruction.op_name) for instruction in instructions]
    own = {scope[depth] for scope in scopes if len(scope) > depth}
    return own or {
        found for instruction in instructions for run in instruction.runs for found in _programs(module, run, depth)
    }
