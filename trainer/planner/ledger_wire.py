"""What the traced step sends, beside what the compiled one sends; see `trainer.planner.ledger`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from jax.extend.core import ClosedJaxpr

from sharding.mesh import AXES
from trainer.planner.comparison import REPEATED, Line, is_repeated
from trainer.planner.compiled_wire import Message, messages
from trainer.planner.hlo import Module
from trainer.planner.ledger_loops import sent_before_loops
from trainer.wire import Kind, Transfer, wire

HOISTED = "the same in each round of a loop, and sent once before it"
FOLDED = "sums over some axes and then over others, made one sum"
Sum = tuple[Kind, tuple[str, ...], str]
"""What a line adds up: kind, axes in the order of the mesh, and dtype."""


@dataclass(frozen=True, kw_only=True)
class WireLine(Line):
    """Payload of a step, as `trainer.wire.Transfer` has it, in bytes."""

    kind: Kind
    axes: tuple[str, ...]
    dtype: str
    collectives: int
    """In the traced step: one array each."""
    messages: int
    """In the compiled step, which may send several arrays in one."""


def compare_wire(
    program: ClosedJaxpr, module: Module, mesh: Mapping[str, int], shares: Mapping[str, Fraction]
) -> list[WireLine]:
    """All that a device of one pipeline stage sends; `shares` are the stage's, see `trainer.trace.Trace`.

    Raises:
        HloError: see `trainer.planner.compiled_wire.messages`.
    """
    traced = [_in_mesh_order(transfer) for transfer in wire(program, shares)]
    compiled = list(messages(module, mesh, shares))
    sums = {_sum(transfer) for transfer in (*traced, *(t for message in compiled for t in message.transfers))}
    lines = [_line(key, traced, compiled) for key in sorted(sums)]
    if any(line.unexplained for line in lines):
        saved = sent_before_loops(traced, compiled, module, shares)
        lines = [
            line.with_cause(HOISTED, sum(size for sort, size in saved.items() if sort[:3] == key))
            for key, line in zip(sorted(sums), lines, strict=True)
        ]
    return folded(lines)


def _in_mesh_order(transfer: Transfer) -> Transfer:
    return dataclasses.replace(transfer, axes=tuple(axis for axis in AXES if axis in transfer.axes))


def _sum(transfer: Transfer) -> Sum:
    return transfer.kind, transfer.axes, transfer.dtype


def _line(key: Sum, traced: Sequence[Transfer], compiled: Sequence[Message]) -> WireLine:
    kind, axes, dtype = key
    mine = [transfer for transfer in traced if _sum(transfer) == key]
    parts = [(message, _part(message, key)) for message in compiled]
    line = WireLine(
        name=f"{kind} over {' x '.join(axes)}, {dtype}",
        traced=sum(transfer.payload for transfer in mine),
        compiled=sum(payload for _, payload in parts),
        kind=kind,
        axes=axes,
        dtype=dtype,
        collectives=sum(transfer.count for transfer in mine),
        messages=sum(message.times for message, payload in parts if payload),
    )
    return line.with_cause(REPEATED, sum(payload for message, payload in parts if is_repeated(message.executed)))


def _part(message: Message, key: Sum) -> int:
    """Bytes of a message that belong to a line, for all the times that it is sent."""
    return sum(transfer.payload for transfer in message.transfers if _sum(transfer) == key)


def folded(lines: Sequence[WireLine]) -> list[WireLine]:
    """With those all-reduces explained that XLA makes of two, one after the other: the bytes of both are sent once."""
    found = list(lines)
    for one, other, both in permutations(range(len(lines)), 3):
        first, second, joint = found[one], found[other], found[both]
        if one < other and _can_be_folded(first, second, joint):
            amount = min(-first.unexplained, -second.unexplained, joint.unexplained)
            if amount > 0:
                found[one] = first.with_cause(FOLDED, -amount)
                found[other] = second.with_cause(FOLDED, -amount)
                found[both] = joint.with_cause(FOLDED, amount)
    return found


def _can_be_folded(one: WireLine, other: WireLine, both: WireLine) -> bool:
    kinds = {(line.kind, line.dtype) for line in (one, other, both)}
    return kinds == {("all_reduce", one.dtype)} and sorted((*one.axes, *other.axes)) == sorted(both.axes)
