"""What XLA sends once, before a loop in each round of which jax has it: told by where an instruction stands.

Its name says how many loops jax made it in, and its place how many it is in. See `trainer.planner.ledger_wire`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from trainer.planner.compiled_wire import Message
from trainer.planner.executed import executed
from trainer.planner.hlo import Module
from trainer.wire import Kind, Transfer

BODY = "/while/body"
"""What jax puts into the names of all that is in a loop."""
Sort = tuple[Kind, tuple[str, ...], str, int]
"""Transfers that differ by nothing but their number."""


def sent_before_loops(
    traced: Sequence[Transfer], compiled: Sequence[Message], module: Module, shares: Mapping[str, Fraction]
) -> Counter[Sort]:
    """Bytes that are less than they would be in the loops: negative."""
    fewer = _number(traced)
    fewer.subtract(_number(transfer for message in compiled for transfer in message.transfers))
    in_loops = {(_name(one), _sort(transfer)) for one in compiled if not _is_before(one) for transfer in one.transfers}
    rounds, saved = _rounds(module, shares), Counter[Sort]()
    for message in filter(_is_before, compiled):
        times = rounds.get(_loop(_name(message)), message.times)
        for transfer in message.transfers:
            sort = _sort(transfer)
            # What is in the loop too is but one of its rounds, taken out of it.
            if fewer[sort] > 0 and (_name(message), sort) not in in_loops:
                saved[sort] += transfer.payload // message.times * (message.times - times)
    return saved


def _number(transfers: Iterable[Transfer]) -> Counter[Sort]:
    counts = Counter[Sort]()
    for transfer in transfers:
        counts[_sort(transfer)] += transfer.count
    return counts


def _sort(transfer: Transfer) -> Sort:
    return transfer.kind, transfer.axes, transfer.dtype, transfer.elements


def _is_before(message: Message) -> bool:
    return len(message.executed.loops) < _depth(_name(message))


def _rounds(module: Module, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """How often the body of a loop runs in a step, by the loop's name in jax; of loops of one name the first."""
    found: dict[str, int] = {}
    for one in executed(module, shares):
        name = one.instruction.op_name
        if one.times is not None and 0 < _depth(name) == len(one.loops):
            found.setdefault(_loop(name), int(one.times))
    return found


def _name(message: Message) -> str:
    return message.executed.instruction.op_name


def _loop(op_name: str) -> str:
    """The innermost loop that jax made something in."""
    return op_name.rpartition(BODY)[0]


def _depth(op_name: str) -> int:
    return op_name.count(BODY)
