"""How micro-batches flow through pipeline stages, whoever schedules them: how long it takes, and what stays alive.

Only numbers come out: a step in units of one chunk's work, and chunk activations. Knows nothing of what a chunk is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from trainer.pipeline import find_schedule


@dataclass(frozen=True)
class Flow:
    """Of `P` stages with `V` chunks each, and `M` micro-batches."""

    rounds: float
    """Times that a step takes as long as a forward and a backward of one chunk: V·M without a bubble."""
    alive: tuple[int, ...]
    """For each stage, the most chunk activations that it keeps at once."""

    @property
    def num_stages(self) -> int:
        return len(self.alive)


@lru_cache(maxsize=4096)
def lockstep(schedule: str, stages: int, chunks: int, micro_batches: int) -> Flow:
    """Ticks in lockstep, as `sharding.pipeline` runs them: by a schedule's name or the file that it stands in.

    Raises:
        ValueError: no such schedule, or not for these numbers.
    """
    if stages == 1:
        return Flow(micro_batches, (1,))
    table = find_schedule(schedule, stages, chunks, micro_batches)
    return Flow(chunks * micro_batches * (1 + table.bubble()), (table.num_slots,) * stages)


def asynchronous(stages: int, chunks: int, micro_batches: float) -> Flow:
    """1F1B, interleaved if there are several chunks, of stages that wait only for each other, as Megatron runs them.

    `micro_batches` need not be whole: some published batches do not divide.
    """
    total = math.ceil(chunks * micro_batches)
    if chunks == 1:
        alive = tuple(min(stages - stage, total) for stage in range(stages))
    else:
        alive = tuple(min(2 * (stages - 1 - stage) + (chunks - 1) * stages + 1, total) for stage in range(stages))
    return Flow(chunks * micro_batches + stages - 1, alive)
