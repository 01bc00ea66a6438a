"""A pipeline schedule: one numpy table that says which unit each stage runs at each tick, and the check of it.

`T` ticks, `P` stages, `V` chunks (virtual stages) of each stage, `K` = V·P virtual stages, `M` micro-batches. Chunk c
of stage s is virtual stage c·P + s, in the order of the layers. A unit is the forward or the backward of one chunk for
one micro-batch. In one tick a stage runs at most one forward, then at most one backward; what it sends is there from
the next tick on. Knows nothing of models or devices, nor of how a unit is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FORWARD, BACKWARD = 0, 1
CHUNK, MICRO_BATCH, SLOT = 0, 1, 2
IDLE = -1

WHAT = ("forward", "backward")
_NEVER = np.iinfo(np.int64).max // 2  # a tick later than all, to which 1 can be added


class Phase(NamedTuple):
    """Ticks `start` to `stop` (exclusive), and what any stage runs in them."""

    start: int
    stop: int
    forward: bool
    backward: bool


class ScheduleError(ValueError):
    """A schedule that cannot be run. `row` is the unit at fault as (tick, stage, what); None where there is none."""

    def __init__(self, problem: str, row: tuple[int, int, int] | None = None) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each unit of one training step runs, and in which slot its activations are kept.

    What a forward keeps for its backward lies in a slot of its stage from the forward's tick to the backward's, both
    included. Every number is read from the table.
    """

    name: str
    units: np.ndarray = field(repr=False)
    """int32 [T, P, 2, 3]: tick, stage, what (FORWARD or BACKWARD) -> chunk, micro-batch, slot; all IDLE where none."""

    @property
    def num_ticks(self) -> int:
        return self.units.shape[0]

    @property
    def num_stages(self) -> int:
        return self.units.shape[1]

    @property
    def num_chunks(self) -> int:
        """Of each stage."""
        return self._count(CHUNK)

    @property
    def num_micro_batches(self) -> int:
        return self._count(MICRO_BATCH)

    @property
    def num_slots(self) -> int:
        """That every stage needs: the most that any of them uses."""
        return self._count(SLOT)

    def _count(self, column: int) -> int:
        return int(self.units[..., column].max(initial=IDLE)) + 1

    @property
    def runs(self) -> np.ndarray:
        """bool [T, P, 2]: whether there is a unit."""
        return self.units[..., CHUNK] != IDLE

    @property
    def phases(self) -> list[Phase]:
        """Those that exist of warm-up (no stage runs a backward yet), steady, drain (none runs a forward any more)."""
        runs = np.any(self.runs, axis=1)
        steady = int(runs[:, BACKWARD].argmax())
        drain = max(steady, self.num_ticks - int(runs[::-1, FORWARD].argmax()))
        phases = [
            Phase(0, steady, forward=True, backward=False),
            Phase(steady, drain, forward=True, backward=True),
            Phase(drain, self.num_ticks, forward=False, backward=True),
        ]
        return [phase for phase in phases if phase.start < phase.stop]

    def bubble(self, forward: float = 1.0, backward: float = 2.0) -> float:
        """The time lost, as a fraction of the time at work, where a unit takes `forward` or `backward`.

        Stages work in lockstep: each half of a tick lasts as long as its unit, and no time where no stage has one.
        """
        num_forwards, num_backwards = np.any(self.runs, axis=1).sum(axis=0)
        time = num_forwards * forward + num_backwards * backward
        return float(time / (self.num_chunks * self.num_micro_batches * (forward + backward)) - 1)

    def live(self) -> np.ndarray:
        """int [T, P]: chunk activations that each stage keeps during each tick."""
        started = self.runs[..., FORWARD].cumsum(axis=0)
        ended = self.runs[..., BACKWARD].cumsum(axis=0) - self.runs[..., BACKWARD]  # before this tick
        return started - ended

    @property
    def peak_live(self) -> int:
        """The most chunk activations that any stage keeps at once."""
        return int(self.live().max())

    def validate(self) -> None:
        """Checks that the table can be run, and that running it trains.

        Raises:
            ScheduleError: the first unit, in the order of ticks, that cannot run where it stands.
        """
        _check_form(self.units)
        rows = _Rows.of(self)
        faults = [fault for check in _CHECKS if (fault := check(rows)) is not None]
        if faults:
            row, problem = min(faults, key=lambda fault: fault[0])
            what, stage, tick = int(rows.what[row]), int(rows.stage[row]), int(rows.tick[row])
            raise ScheduleError(f"tick {tick}, stage {stage}: {rows.unit(row)} {problem}", (tick, stage, what))
        missing = np.argwhere(rows.when[FORWARD] == _NEVER)
        if len(missing):
            virtual, micro_batch = missing[0]
            raise ScheduleError(f"{rows.describe(FORWARD, virtual, micro_batch)} never runs; add it, and its backward")


def with_slots(units: np.ndarray) -> np.ndarray:
    """The same table with slots allocated: each forward takes the lowest that is free. Needs a valid order."""
    units = units.copy()
    units[..., SLOT] = IDLE
    _, num_stages, _, _ = units.shape
    num_chunks, num_micro_batches = units[..., CHUNK].max() + 1, units[..., MICRO_BATCH].max() + 1
    free = np.ones((num_stages, num_chunks * num_micro_batches), bool)
    slot = np.full((num_stages, num_chunks, num_micro_batches), IDLE)
    for tick in units:
        for what in (FORWARD, BACKWARD):
            stage = np.flatnonzero(tick[:, what, CHUNK] != IDLE)
            unit = stage, tick[stage, what, CHUNK], tick[stage, what, MICRO_BATCH]
            if what == FORWARD:
                slot[unit] = free[stage].argmax(axis=1)
            free[stage, slot[unit]] = what == BACKWARD
            tick[stage, what, SLOT] = slot[unit]
    return units


@dataclass(frozen=True)
class _Rows:
    """The units in the order of ticks, as columns of length N, and when each unit runs."""

    tick: np.ndarray
    stage: np.ndarray
    what: np.ndarray
    chunk: np.ndarray
    micro_batch: np.ndarray
    slot: np.ndarray
    virtual: np.ndarray
    """The virtual stage."""
    when: np.ndarray
    """int64 [2, K, M]: the first tick that runs each unit, or _NEVER."""
    num_stages: int

    @classmethod
    def of(cls, schedule: Schedule) -> _Rows:
        tick, stage, what = np.nonzero(schedule.runs)
        chunk, micro_batch, slot = schedule.units[tick, stage, what].astype(np.int64).T
        virtual = chunk * schedule.num_stages + stage
        shape = 2, schedule.num_chunks * schedule.num_stages, schedule.num_micro_batches
        when = np.full(shape, _NEVER)
        np.minimum.at(when, (what, virtual, micro_batch), tick)
        return cls(tick, stage, what, chunk, micro_batch, slot, virtual, when, schedule.num_stages)

    @property
    def unit_index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.what, self.virtual, self.micro_batch

    @property
    def num_virtual(self) -> int:
        return self.when.shape[1]

    def unit(self, row: int) -> str:
        chunk, micro_batch = self.chunk[row], self.micro_batch[row]
        return f"the {WHAT[self.what[row]]} of chunk {chunk} for micro-batch {micro_batch}"

    def describe(self, what: int, virtual: int, micro_batch: int) -> str:
        chunk, stage = divmod(int(virtual), self.num_stages)
        return f"the {WHAT[what]} of chunk {chunk} for micro-batch {micro_batch} on stage {stage}"


_Fault = tuple[int, str]
"""A row, and what is wrong with it."""


def _first(wrong: np.ndarray, problem: Callable[[int], str]) -> _Fault | None:
    row = int(wrong.argmax())
    return (row, problem(row)) if wrong[row] else None


def _check_form(units: np.ndarray) -> None:
    """What must hold before the entries can be indices, and their largest the sizes of arrays."""
    if units.ndim != 4 or units.shape[2:] != (2, 3) or units.dtype != np.int32:
        raise ScheduleError(f"a table is int32 [ticks, stages, 2, 3], and this is {units.dtype} {list(units.shape)}")
    if (units == IDLE).all():
        raise ScheduleError("the table is idle throughout; it needs a forward and a backward of every micro-batch")
    wrong = np.argwhere(~((units >= 0).all(axis=-1) | (units == IDLE).all(axis=-1)))
    if len(wrong):
        tick, stage, what = wrong[0].tolist()
        raise ScheduleError(
            f"tick {tick}, stage {stage}: the {WHAT[what]} has (chunk, micro-batch, slot) "
            f"{tuple(units[tick, stage, what].tolist())}; each is 0 or more, or all are {IDLE} where there is no unit",
            (tick, stage, what),
        )
    chunk, micro_batch, _ = units.max(axis=(0, 1, 2)).tolist()
    if (num_units := (chunk + 1) * (micro_batch + 1)) > len(units):
        raise ScheduleError(
            f"chunks up to {chunk} and micro-batches up to {micro_batch} are {num_units} forwards of each stage, which "
            f"take as many ticks or more, and there are {len(units)}; number both from 0, without gaps"
        )


def _runs_twice(rows: _Rows) -> _Fault | None:
    first = rows.when[rows.unit_index]
    return _first(rows.tick != first, lambda row: f"ran at tick {first[row]} already; leave one of the two out")


def _deadlock(rows: _Rows) -> _Fault | None:
    """A unit before what it waits for: activations from the virtual stage before, a cotangent from the one after."""
    turn = (rows.what == BACKWARD) & (rows.virtual == rows.num_virtual - 1)  # the loss needs no journey
    source_what = np.where(turn, FORWARD, rows.what)
    source = rows.virtual + np.where(turn, 0, np.where(rows.what == FORWARD, -1, 1))
    ready = np.where(source < 0, 0, rows.when[source_what, source, rows.micro_batch] + ~turn)

    def problem(row: int) -> str:
        waits = f"waits for {rows.describe(source_what[row], source[row], rows.micro_batch[row])}"
        if ready[row] >= _NEVER:
            return f"{waits}, which never runs; add it at an earlier tick"
        sent = ready[row] - (not turn[row])
        return f"is a deadlock: it {waits}, which runs at tick {sent}; run it at tick {ready[row]} or later"

    return _first(rows.tick < ready, problem)


def _no_backward(rows: _Rows) -> _Fault | None:
    missing = (rows.what == FORWARD) & (rows.when[BACKWARD, rows.virtual, rows.micro_batch] == _NEVER)
    return _first(missing, lambda row: "has no backward; add one, or the layers of this chunk do not learn from it")


def _no_such_slot(rows: _Rows) -> _Fault | None:
    """So large a slot that memory would be kept for nothing: no stage needs more slots than it has units."""
    enough = rows.when[FORWARD].size // rows.num_stages
    return _first(rows.slot >= enough, lambda row: f"is in slot {rows.slot[row]}; use 0 to {enough - 1}")


def _other_slot(rows: _Rows) -> _Fault | None:
    forward = (rows.what == FORWARD) & (rows.tick == rows.when[rows.unit_index])
    kept = np.full(rows.when.shape[1:], IDLE, np.int64)
    kept[rows.virtual[forward], rows.micro_batch[forward]] = rows.slot[forward]
    written = kept[rows.virtual, rows.micro_batch]
    other = (rows.what == BACKWARD) & (rows.slot != written)
    return _first(other, lambda row: f"reads slot {rows.slot[row]}; its forward wrote slot {written[row]}")


def _overwritten(rows: _Rows) -> _Fault | None:
    """A forward into a slot that holds what another unit's backward, at this tick or later, has not read yet."""
    forward = np.flatnonzero(rows.what == FORWARD)
    # By stage and slot, then tick: each forward stands behind the one that wrote the slot before it.
    forward = forward[np.lexsort((rows.tick[forward], rows.slot[forward], rows.stage[forward]))]
    before, after = forward[:-1], forward[1:]
    until = rows.when[BACKWARD, rows.virtual[before], rows.micro_batch[before]]
    same = (rows.stage[before] == rows.stage[after]) & (rows.slot[before] == rows.slot[after])
    holder = np.full(len(rows.tick), IDLE)
    overwrites = same & (rows.tick[after] <= until)
    holder[after[overwrites]] = before[overwrites]

    def problem(row: int) -> str:
        free = rows.when[BACKWARD, rows.virtual[holder[row]], rows.micro_batch[holder[row]]] + 1
        return (
            f"overwrites slot {rows.slot[row]}, which keeps {rows.unit(holder[row])} until its backward; "
            f"use another slot, or this one from tick {free} on"
        )

    return _first(holder != IDLE, problem)


# In this order where one row has several faults: a later check may build on those before it.
_CHECKS = (_runs_twice, _deadlock, _no_backward, _no_such_slot, _other_slot, _overwritten)
