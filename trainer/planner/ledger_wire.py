"""What the traced step sends, beside what the compiled one sends; see `trainer.planner.ledger`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from jax.extend.core import ClosedJaxpr

from sharding.mesh import AXES
from trainer.planner.comparison import REPEATED, Line, is_repeated
from trainer.planner.compiled_wire import Message, messages
from trainer.planner.executed import executed
from trainer.planner.hlo import Module
from trainer.wire import Kind, Transfer, wire

HOISTED = "the same in each round of a loop, and sent once before it"
FOLDED = "sums over some axes and then over others, made one sum"
BODY = "/while/body"
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
    lines = [_line(key, traced.get(key, []), compiled) for key in sorted(sums)]
    if any(line.unexplained for line in lines):
        sent_before = _sent_before_loops(wire(program, shares), compiled, _rounds(module, shares))
        lines = [line.with_cause(HOISTED, sent_before[line.kind, line.axes, line.dtype]) for line in lines]
    return folded(lines)


def _sum_of(transfer: Transfer) -> Sum:
    return transfer.kind, tuple(axis for axis in AXES if axis in transfer.axes), transfer.dtype


def _by_sum(transfers: Iterable[Transfer]) -> dict[Sum, list[Transfer]]:
    found: dict[Sum, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        found[_sum_of(transfer)].append(transfer)
    return found


def _line(key: Sum, traced: Sequence[Transfer], compiled: Sequence[Message]) -> WireLine:
    kind, axes, dtype = key
    parts = [(message, payload) for message in compiled if (payload := _part(message, key))]
    line = WireLine(
        name=f"{kind} over {' x '.join(axes)}, {dtype}",
        traced=sum(transfer.payload for transfer in traced),
        compiled=sum(payload for _, payload in parts),
        kind=kind,
        axes=axes,
        dtype=dtype,
        collectives=sum(transfer.count for transfer in traced),
        messages=sum(message.times for message, _ in parts),
    )
    return line.with_cause(REPEATED, sum(payload for message, payload in parts if is_repeated(message.executed)))


def _part(message: Message, key: Sum) -> int:
    """Bytes of a message that belong to a line, for all the times that it is sent."""
    return sum(transfer.payload for transfer in _by_sum(message.transfers).get(key, []))


def _sent_before_loops(
    traced: Sequence[Transfer], compiled: Sequence[Message], rounds: Mapping[str, int]
) -> Counter[Sum]:
    """Bytes that are less because something is sent once, before a loop in each round of which jax has it."""
    fewer = _arrays(traced)
    fewer.subtract(_arrays(transfer for message in compiled for transfer in message.transfers))
    inside = {
        (_name(message), array) for message in compiled if _is_in_place(message) for array in _arrays(message.transfers)
    }
    found: Counter[Sum] = Counter()
    for message in compiled:
        for transfer in message.transfers:
            (array,) = _arrays([transfer])
            # What is inside of the loop too is one of its rounds, taken out of it.
            if fewer[array] > 0 and not _is_in_place(message) and (_name(message), array) not in inside:
                times = rounds.get(_loop(_name(message)), message.times)
                found[array[:3]] += transfer.payload // message.times * (message.times - times)
    return found


def _arrays(transfers: Iterable[Transfer]) -> Counter[tuple[Kind, tuple[str, ...], str, int]]:
    """How often an array of so many elements is sent, of each line."""
    counts: Counter[tuple[Kind, tuple[str, ...], str, int]] = Counter()
    for transfer in transfers:
        counts[*_sum_of(transfer), transfer.elements] += transfer.count
    return counts


def _name(message: Message) -> str:
    return message.executed.instruction.op_name


def _is_in_place(message: Message) -> bool:
    return len(message.executed.loops) >= _depth(_name(message))


def _rounds(module: Module, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """How often the body of a loop runs in a step, by the loop's name in jax; of loops of one name the first."""
    found: dict[str, int] = {}
    for one in executed(module, shares):
        name = one.instruction.op_name
        if one.times is not None and 0 < _depth(name) == len(one.loops):
            found.setdefault(_loop(name), int(one.times))
    return found


def _loop(op_name: str) -> str:
    """The innermost loop that jax made something in."""
    return op_name.rpartition(BODY)[0]


def _depth(op_name: str) -> int:
    return op_name.count(BODY)


def folded(lines: Sequence[WireLine]) -> list[WireLine]:
    """With those all-reduces explained that XLA makes of two, one after the other: the bytes of both are sent once."""
    found = list(lines)
    for one, other, both in permutations(range(len(lines)), 3):
        first, second, joint = found[one], found[other], found[both]
        if one < other and _can_befolded(first, second, joint):
            amount = min(-first.unexplained, -second.unexplained, joint.unexplained)
            if amount > 0:
                found[one] = first.with_cause(FOLDED, -amount)
                found[other] = second.with_cause(FOLDED, -amount)
                found[both] = joint.with_cause(FOLDED, amount)
    return found


def _can_befolded(one: WireLine, other: WireLine, both: WireLine) -> bool:
    kinds = {(line.kind, line.dtype) for line in (one, other, both)}
    return kinds == {("all_reduce", one.dtype)} and sorted((*one.axes, *other.axes)) == sorted(both.axes)
