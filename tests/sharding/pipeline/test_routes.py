"""Messages between stages: each is stored when it arrives, waits untouched, and is read by the unit it is for."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.pipeline.makers import make
from sharding.pipeline.routes import Routes, Slots, route
from sharding.pipeline.schedule import BACKWARD, FORWARD, IDLE, Schedule
from tests.sharding.pipeline.tables import random_schedule

MADE = [
    *(("gpipe", stages, 1, micro_batches) for stages in (2, 5) for micro_batches in (1, 4, 7)),
    *(("1f1b", stages, 1, micro_batches) for stages in (2, 5, 8) for micro_batches in (1, 4, 7, 16)),
    *(("interleaved_1f1b", stages, chunks, 7) for stages in (2, 5, 8) for chunks in (2, 3)),
]


class Inbox:
    """The slots of one stage, and the most of them that were full at once."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots, self.held, self.most = num_slots, {}, 0

    def store(self, slot: int, message: Any) -> None:
        assert 0 <= slot < self.num_slots, f"{message} is not stored when it arrives"
        assert slot not in self.held, f"{message} overwrites {self.held[slot]}"
        self.held[slot] = message
        self.most = max(self.most, len(self.held))

    def take(self, slot: int) -> Any:
        return self.held.pop(slot)


def simulate(schedule: Schedule, routes: Routes) -> tuple[int, int]:
    """Runs the table as the executor does, with names instead of arrays; the most messages that waited in an inbox."""
    stages, last = schedule.num_stages, schedule.num_chunks * schedule.num_stages - 1
    activations, cotangents = ([Inbox(num_slots) for _ in range(stages)] for num_slots in routes.num_slots)
    sent_on: list[Any] = [None] * stages
    sent_back: list[Any] = [None] * stages

    for tick in range(schedule.num_ticks):
        arrived, sent_on = [sent_on[stage - 1] for stage in range(stages)], [None] * stages
        for stage, (inbox, message) in enumerate(zip(activations, arrived, strict=True)):
            slot, use = routes.activation_in[tick, stage], routes.activation_use[tick, stage]
            if message is not None and message[0] != last:
                inbox.store(slot, message)
            else:
                assert slot == IDLE
            chunk, micro_batch, _ = schedule.units[tick, stage, FORWARD]
            virtual = chunk * stages + stage
            if chunk == IDLE or virtual == 0:
                assert use == IDLE
                assert chunk == IDLE or micro_batch == routes.embed[tick]
            else:
                assert inbox.take(use) == (virtual - 1, micro_batch)
            sent_on[stage] = None if chunk == IDLE else (virtual, micro_batch)

        done = sent_on[-1] if sent_on[-1] and sent_on[-1][0] == last else None
        assert routes.head[tick] == (done[1] if done else IDLE)
        assert [slot for slot in routes.cotangent_head[tick, :-1] if slot != IDLE] == []
        if done:
            cotangents[-1].store(routes.cotangent_head[tick, -1], ("loss", done[1]))
        else:
            assert routes.cotangent_head[tick, -1] == IDLE

        arrived, sent_back = [sent_back[(stage + 1) % stages] for stage in range(stages)], [None] * stages
        for stage, (inbox, message) in enumerate(zip(cotangents, arrived, strict=True)):
            slot, use = routes.cotangent_in[tick, stage], routes.cotangent_use[tick, stage]
            if message is not None and message[0] != 0:
                inbox.store(slot, message)
            else:
                assert slot == IDLE
            chunk, micro_batch, _ = schedule.units[tick, stage, BACKWARD]
            virtual = chunk * stages + stage
            if chunk == IDLE:
                assert use == IDLE
            else:
                assert inbox.take(use) == ("loss" if virtual == last else virtual + 1, micro_batch)
                sent_back[stage] = virtual, micro_batch
        back = sent_back[0] if sent_back[0] and sent_back[0][0] == 0 else None
        assert routes.embed_backward[tick] == (back[1] if back else IDLE)

    assert not any(inbox.held for inbox in activations + cotangents), "every message is read"
    return max(inbox.most for inbox in activations), max(inbox.most for inbox in cotangents)


@pytest.mark.parametrize(("name", "stages", "chunks", "micro_batches"), MADE)
def test_our_schedules_lose_no_message(name: str, stages: int, chunks: int, micro_batches: int) -> None:
    schedule = make(name, stages, chunks, micro_batches)
    routes = route(schedule)
    assert routes.num_slots == simulate(schedule, routes)
    waits = micro_batches if name == "gpipe" else 1  # the loss's cotangents, for the backwards to begin
    assert routes.num_slots == Slots(activations=1, cotangents=waits), "all else is read as it arrives"


@settings(deadline=None, max_examples=150)
@given(st.randoms(), st.integers(2, 5), st.integers(1, 3), st.integers(1, 6), st.sampled_from([0.2, 0.6, 1.0]))
def test_no_valid_schedule_loses_a_message(
    random: Random, stages: int, chunks: int, micro_batches: int, zeal: float
) -> None:
    schedule = random_schedule(random, stages, chunks, micro_batches, zeal)
    schedule.validate()
    routes = route(schedule)
    assert routes.num_slots == simulate(schedule, routes), "no slot more than is needed"


def test_in_such_schedules_messages_wait_for_one_another() -> None:
    """Or the test above would say nothing."""
    schedule = random_schedule(Random(0), 3, 2, 6, zeal=0.4)
    assert min(route(schedule).num_slots) > 2
    assert not schedule.runs.any(axis=(1, 2)).all(), "some ticks are idle throughout"
