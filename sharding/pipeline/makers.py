"""The built-in schedules: each is the tick of every forward and of every backward, as a formula.

`P` stages, `V` chunks (virtual stages) of each, `M` micro-batches; ticks are arrays [P, V, M]. Ticks are lockstep, so
that a forward and a backward share each steady tick: 1F1B keeps 2P - 1 micro-batches where asynchronous stages keep P.
Knows nothing of how a schedule is executed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

import numpy as np

from sharding.pipeline.schedule import BACKWARD, CHUNK, FORWARD, IDLE, MICRO_BATCH, Schedule, with_slots

MOST_SLOTS = 1.125
"""What interleaving takes for a smaller bubble, as a part of the V·P + P - 1 that groups of P need."""


def gpipe(stages: int, chunks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965). Keeps M micro-batches.

    Raises:
        ValueError: more than one chunk.
    """
    _one_chunk("gpipe", chunks)
    stage, _, micro_batch = np.indices((stages, chunks, micro_batches))
    forward = stage + micro_batch
    backward = (micro_batches + stages - 1) + (stages - 1 - stage) + micro_batch
    return _schedule("gpipe", forward, backward)


def one_f_one_b(stages: int, chunks: int, micro_batches: int) -> Schedule:
    """One forward, one backward (Narayanan et al. 2021, arXiv:2006.09503). Keeps min(M, 2P - 1) micro-batches.

    Raises:
        ValueError: more than one chunk.
    """
    _one_chunk("1f1b", chunks)
    stage, _, micro_batch = np.indices((stages, chunks, micro_batches))
    return _schedule("1f1b", stage + micro_batch, 2 * (stages - 1) - stage + micro_batch)


def interleaved_1f1b(stages: int, chunks: int, micro_batches: int) -> Schedule:
    """1F1B of stages that hold several chunks (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).

    Micro-batches go through in groups of P, each group through all chunks in turn. Where P does not divide M the groups
    are larger: activations wait for their turn at the next chunk, which costs slots and no time; or smaller, which
    leaves places idle, where larger ones would cost many slots. With groups of P to G the bubble is (P - 1) / (V·M),
    and (V - 1)·G + min(M, 2P - 1) chunks are kept.
    """
    stage, chunk, micro_batch = np.indices((stages, chunks, micro_batches))
    group, member, size = _groups(stages, chunks, micro_batches)
    turns = np.maximum(size, stages if chunks > 1 else 0)  # until the first of a group is back for its next chunk
    begins = chunks * np.concatenate([[0], turns.cumsum()[:-1]])
    in_turn = (begins[group] + member)[micro_batch]
    turn = turns[group][micro_batch]
    forward = stage + in_turn + chunk * turn
    first = stages - 1 + (chunks - 1) * turns.max()  # when the first backward of all can run
    backward = first + (stages - 1 - stage) + in_turn + (chunks - 1 - chunk) * turn
    return _schedule("interleaved_1f1b", forward, backward)


def _groups(stages: int, chunks: int, micro_batches: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each micro-batch its group and place in it, and of each group its size: as even as can be."""
    num_groups = max(1, micro_batches // stages)
    slots = (chunks - 1) * -(-micro_batches // num_groups) + min(micro_batches, 2 * stages - 1)
    if slots > MOST_SLOTS * (chunks * stages + stages - 1):
        num_groups += 1
    few, more = divmod(micro_batches, num_groups)
    size = np.array([few + (index < more) for index in range(num_groups)])
    group = np.repeat(np.arange(num_groups), size)
    member = np.arange(micro_batches) - (size.cumsum() - size)[group]
    return group, member, size


SCHEDULES: dict[str, Callable[[int, int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved_1f1b": interleaved_1f1b,
}


def make(name: str, stages: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule called `name`, for `stages` with `chunks` (virtual stages) each.

    Raises:
        ValueError: no such schedule, or not for these numbers; the message says which choice works.
    """
    if name not in SCHEDULES:
        near = difflib.get_close_matches(name.lower(), SCHEDULES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(SCHEDULES)}, and files ending in .csv"
        raise ValueError(f"there is no schedule {name!r}; {hint}")
    for what, number in (("stages", stages), ("chunks", chunks), ("micro-batches", micro_batches)):
        if number < 1:
            raise ValueError(f"a schedule of {number} {what}; it needs 1 or more")
    return SCHEDULES[name](stages, chunks, micro_batches)


def _one_chunk(name: str, chunks: int) -> None:
    if chunks != 1:
        raise ValueError(
            f"schedule {name} has one chunk (virtual stage) on each stage, not {chunks}; "
            f"use interleaved_1f1b, or {name} with 1 (pipeline.virtual_stages=1)"
        )


def _schedule(name: str, forward: np.ndarray, backward: np.ndarray) -> Schedule:
    """The table of units at these ticks, int [P, V, M], with slots."""
    stage, chunk, micro_batch = np.indices(forward.shape)
    units = np.full((backward.max() + 1, len(forward), 2, 3), IDLE, np.int32)
    for what, tick in ((FORWARD, forward), (BACKWARD, backward)):
        units[tick, stage, what, CHUNK] = chunk
        units[tick, stage, what, MICRO_BATCH] = micro_batch
    return Schedule(name, with_slots(units))
