"""Where each message of a schedule waits: every activation and cotangent has a slot in its receiver's inbox.

A message sent in one tick arrives with the next, is stored at once, and read by the unit that uses it, maybe at a later
tick. Which slot is plain arithmetic on the schedule. Knows nothing of arrays on devices.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sharding.pipeline.schedule import BACKWARD, CHUNK, FORWARD, IDLE, MICRO_BATCH, Schedule

Message = tuple[int, int, int, str]
"""The ticks of its arrival, its stage, the tick of its use, and the column that says where it arrives."""
COLUMNS = "activation_in", "activation_use", "cotangent_in", "cotangent_head", "cotangent_use"


class Slots(NamedTuple):
    """Of the two inboxes of every stage."""

    activations: int
    cotangents: int


@dataclass(frozen=True)
class Routes:
    """int32 columns over the ticks; IDLE (-1) where there is nothing to do."""

    activation_in: np.ndarray
    """[T, P]: where to store what the previous stage sent in the last tick."""
    activation_use: np.ndarray
    """[T, P]: what the forward reads; IDLE for the first virtual stage, which reads the embedding."""
    cotangent_in: np.ndarray
    """[T, P]: where to store what the next stage sent back in the last tick."""
    cotangent_head: np.ndarray
    """[T, P]: where to store the head's cotangent of this tick; only the last stage does."""
    cotangent_use: np.ndarray
    """[T, P]: what the backward reads."""
    embed: np.ndarray
    """[T]: the micro-batch that the first virtual stage begins with."""
    head: np.ndarray
    """[T]: the micro-batch that leaves the last virtual stage."""
    embed_backward: np.ndarray
    """[T]: the micro-batch whose cotangent leaves the first virtual stage."""
    num_slots: Slots


def route(schedule: Schedule) -> Routes:
    """The routes of a valid schedule. Slots are given to messages as they arrive, the lowest free one first."""
    shape = schedule.num_ticks, schedule.num_stages
    columns = {name: np.full(shape, IDLE, np.int32) for name in COLUMNS}
    forward, backward = _ticks(schedule, FORWARD).tolist(), _ticks(schedule, BACKWARD).tolist()
    last = schedule.num_chunks * schedule.num_stages - 1
    activations: list[Message] = []
    cotangents: list[Message] = []
    for virtual, micro_batch in np.ndindex(len(forward), schedule.num_micro_batches):
        stage = virtual % schedule.num_stages
        if virtual > 0:
            arrives = forward[virtual - 1][micro_batch] + 1
            activations.append((arrives, stage, forward[virtual][micro_batch], "activation_in"))
        if virtual < last:
            arrives = backward[virtual + 1][micro_batch] + 1
            cotangents.append((arrives, stage, backward[virtual][micro_batch], "cotangent_in"))
        else:
            cotangents.append((forward[virtual][micro_batch], stage, backward[virtual][micro_batch], "cotangent_head"))
    num_activations = _allocate(activations, columns, "activation_use")
    num_cotangents = _allocate(cotangents, columns, "cotangent_use")
    return Routes(
        **columns,
        embed=_micro_batches(forward[0], schedule.num_ticks),
        head=_micro_batches(forward[last], schedule.num_ticks),
        embed_backward=_micro_batches(backward[0], schedule.num_ticks),
        num_slots=Slots(num_activations, num_cotangents),
    )


def _ticks(schedule: Schedule, what: int) -> np.ndarray:
    """int [virtual stages, micro-batches]: when each unit runs."""
    ticks = np.zeros((schedule.num_chunks * schedule.num_stages, schedule.num_micro_batches), int)
    tick, stage = np.nonzero(schedule.runs[:, :, what])
    units = schedule.units[tick, stage, what]
    ticks[units[:, CHUNK] * schedule.num_stages + stage, units[:, MICRO_BATCH]] = tick
    return ticks


def _allocate(messages: Iterable[Message], columns: dict[str, np.ndarray], use: str) -> int:
    """Fills the columns of all messages; how many slots a stage needs."""
    busy: dict[int, list[tuple[int, int]]] = {}  # stage -> (tick of use, slot)
    free: dict[int, list[int]] = {}
    most = 1
    for arrives, stage, used, column in sorted(messages):
        waiting, idle = busy.setdefault(stage, []), free.setdefault(stage, [])
        while waiting and waiting[0][0] < arrives:
            heapq.heappush(idle, heapq.heappop(waiting)[1])
        slot = heapq.heappop(idle) if idle else len(waiting)
        heapq.heappush(waiting, (used, slot))
        columns[column][arrives, stage] = columns[use][used, stage] = slot
        most = max(most, len(waiting))
    return most


def _micro_batches(ticks: list[int], num_ticks: int) -> np.ndarray:
    column = np.full(num_ticks, IDLE, np.int32)
    column[ticks] = np.arange(len(ticks))
    return column
