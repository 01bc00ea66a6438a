"""What the traced step sends, beside what the compiled one sends; see `trainer.planner.ledger`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from jax.extend.core import ClosedJaxpr

from sharding.mesh import AXES
from trainer.planner.comparison import REPEATED, Line, is_repeated
from trainer.planner.compiled_wire import Message, messages
from trainer.planner.hlo import Module
from trainer.wire import Kind, Transfer, wire

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
    traced, compiled = _by_sum(wire(program, shares)), list(messages(module, mesh, shares))
    sums = {*traced, *(key for message in compiled for key in _by_sum(message.transfers))}
    return _folded([_line(key, traced.get(key, []), compiled) for key in sorted(sums)])


def _by_sum(transfers: Iterable[Transfer]) -> dict[Sum, list[Transfer]]:
    found: dict[Sum, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        found[transfer.kind, tuple(axis for axis in AXES if axis in transfer.axes), transfer.dtype].append(transfer)
    return found


def _line(key: Sum, traced: Sequence[Transfer], compiled: Sequence[Message]) -> WireLine:
    kind, axes, dtype = key
    parts = [(message, found) for message in compiled if (found := _by_sum(message.transfers).get(key))]
    line = WireLine(
        name=f"{kind} over {' x '.join(axes)}, {dtype}",
        traced=_payload(traced),
        compiled=sum(_payload(found) for _, found in parts),
        kind=kind,
        axes=axes,
        dtype=dtype,
        collectives=sum(transfer.count for transfer in traced),
        messages=sum(message.times for message, _ in parts),
    )
    return line.with_cause(REPEATED, sum(_payload(found) for message, found in parts if is_repeated(message.executed)))


def _payload(transfers: Iterable[Transfer]) -> int:
    return sum(transfer.payload for transfer in transfers)


def _folded(lines: Sequence[WireLine]) -> list[WireLine]:
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
