"""What a compiled step puts on the wire: every collective by kind, mesh axes, dtype and size.

Read from XLA's scheduled program, in the terms that `trainer.wire` has for the traced step. Knows nothing of plans;
what differs is explained by `trainer.planner.ledger`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from trainer.planner.executed import Executed, executed
from trainer.planner.hlo import COLLECTIVES, HloError, Instruction, Module
from trainer.wire import Kind, Transfer

# XLA's name -> ours, and whether the payload is what is made, or what is given.
KINDS: dict[str, tuple[Kind, bool]] = {
    "all-gather": ("all_gather", True),
    "all-reduce": ("all_reduce", False),
    "collective-permute": ("permute", False),
    "reduce-scatter": ("reduce_scatter", False),
}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "s32": "int32", "u32": "uint32", "pred": "bool"}
AMONG = ("replica_groups", "source_target_pairs")
"""What says who takes part."""


@dataclass(frozen=True)
class Message:
    """One collective instruction, and what it sends: several arrays, where XLA has combined several collectives."""

    executed: Executed
    transfers: tuple[Transfer, ...]

    @property
    def times(self) -> int:
        """In a step."""
        return self.transfers[0].count


def messages(module: Module, mesh: Mapping[str, int], shares: Mapping[str, Fraction]) -> Iterator[Message]:
    """Everything that a device sends in a step, in the order in which it is begun.

    Args:
        mesh: axis -> size, of the mesh that the step is compiled for.
        shares: see `trainer.planner.executed.executed`.

    Raises:
        HloError: a collective that has no rule here, whose groups are not those of mesh axes, or whose number is known
            only when the program runs.
    """
    known: dict[str, tuple[str, ...]] = {}  # most collectives are among few kinds of groups
    for one in executed(module, shares):
        if one.instruction.opcode in COLLECTIVES and one.instruction.phase in (None, "start"):
            among = "".join(one.instruction.attributes.get(key, "") for key in AMONG)
            if among not in known:
                known[among] = mesh_axes(one.instruction, mesh)
            yield Message(one, tuple(_transfers(one, known[among], mesh)))


def _transfers(one: Executed, axes: tuple[str, ...], mesh: Mapping[str, int]) -> Iterator[Transfer]:
    instruction = one.instruction
    if instruction.opcode not in KINDS:
        raise HloError(f"no rule for what {instruction.opcode} sends")
    if one.times is None:
        raise HloError(f"{instruction.name} in a branch or loop: how often is known only when it runs")
    if one.times.denominator != 1:
        raise HloError(f"{instruction.name} runs {one.times} times: some share is wrong")
    kind, is_made = KINDS[instruction.opcode]
    devices = math.prod(mesh[axis] for axis in axes)
    for array in one.computation.made(instruction) if is_made else one.computation.taken(instruction):
        yield Transfer(kind, axes, devices, DTYPES[array.dtype], array.elements, int(one.times))


def mesh_axes(collective: Instruction, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that a collective is over, in the order of the mesh.

    Raises:
        HloError: its groups are not those of all devices along some axes, or a permute is no shift along one axis.
    """
    return _shifted(collective, mesh) if collective.opcode == "collective-permute" else _grouped(collective, mesh)


def _grouped(collective: Instruction, mesh: Mapping[str, int]) -> tuple[str, ...]:
    groups = collective.groups
    if groups is None:
        groups = np.arange(math.prod(mesh.values()))[None]
    places = _places(groups, mesh)
    axes = tuple(axis for axis, place in zip(mesh, places, strict=True) if (place != place[:, :1]).any())
    members = math.prod(mesh[axis] for axis in axes)
    if groups.shape[1] != members or len(np.unique(groups)) != math.prod(mesh.values()):
        raise HloError(f"{collective.name} is among groups that no mesh axes make: {groups.tolist()}"[:200])
    return axes


def _shifted(permute: Instruction, mesh: Mapping[str, int]) -> tuple[str, ...]:
    source, target = _places(permute.pairs.T, mesh).swapaxes(0, 1)
    steps = {axis: np.unique((b - a) % mesh[axis]) for axis, a, b in zip(mesh, source, target, strict=True)}
    axes = tuple(axis for axis, step in steps.items() if step.any())
    if len(axes) != 1 or len(steps[axes[0]]) != 1:
        raise HloError(f"{permute.name} is no shift along a mesh axis: {permute.pairs.tolist()}"[:200])
    return axes


def _places(devices: np.ndarray, mesh: Mapping[str, int]) -> np.ndarray:
    """Of devices, by their number: int [axes, ...]."""
    return np.stack(np.unravel_index(devices, tuple(mesh.values())))
