"""Schedules that nobody would make: units in any valid order, stages that wait, messages that wait for their stage."""

from __future__ import annotations

from random import Random

import numpy as np

from sharding.pipeline.schedule import BACKWARD, CHUNK, FORWARD, IDLE, MICRO_BATCH, Schedule, with_slots

Unit = tuple[int, int]  # (virtual stage, micro-batch)


def random_schedule(random: Random, stages: int, chunks: int, micro_batches: int, zeal: float) -> Schedule:
    """At each tick a stage does any of the units that it could, or none with probability 1 - zeal."""
    num_virtual = stages * chunks
    todo = {what: {*np.ndindex(num_virtual, micro_batches)} for what in (FORWARD, BACKWARD)}
    ran: dict[int, dict[Unit, int]] = {FORWARD: {}, BACKWARD: {}}
    ticks: list[np.ndarray] = []

    def ready(what: int, unit: Unit) -> bool:
        virtual, micro_batch = unit
        now = len(ticks) - 1
        if what == FORWARD:
            return virtual == 0 or ran[FORWARD].get((virtual - 1, micro_batch), now) < now
        if virtual == num_virtual - 1:
            return unit in ran[FORWARD]
        return ran[BACKWARD].get((virtual + 1, micro_batch), now) < now

    while todo[BACKWARD]:
        ticks.append(np.full((stages, 2, 3), IDLE, np.int32))
        for stage in range(stages):
            for what in (FORWARD, BACKWARD):
                can = sorted(unit for unit in todo[what] if unit[0] % stages == stage and ready(what, unit))
                if can and random.random() < zeal:
                    unit = random.choice(can)
                    ticks[-1][stage, what, CHUNK] = unit[0] // stages
                    ticks[-1][stage, what, MICRO_BATCH] = unit[1]
                    ran[what][unit] = len(ticks) - 1
                    todo[what].remove(unit)
    return Schedule("random", with_slots(np.stack(ticks)))
