"""Messages between stages: each is stored when it arrives, waits untouched, and is read by the unit it is for."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.pipeline.makers import make
from sharding.pipeline.routes import Routes, route
from sharding.pipeline.schedule import BACKWARD, FORWARD, IDLE, Schedule
from tests.sharding.pipeline.tables import random_schedule

# Name, stages, chunks, micro-batches -> slots for activations and for cotangents. One is enough where each message is
# read as it arrives. GPipe's cotangents of the loss wait for the backwards to begin; in interleaving, what comes from
# groups of more than P micro-batches waits for its turn.
MADE: dict[tuple[str, int, int, int], tuple[int, int]] = {
    **{("gpipe", stages, 1, number): (1, number) for stages in (2, 5) for number in (1, 4, 7)},
    **{("1f1b", stages, 1, number): (1, 1) for stages in (2, 5, 8) for number in (1, 4, 7, 16)},
    **{("interleaved_1f1b", stages, chunks, 8): (1, 1) for stages in (2, 4, 8) for chunks in (2, 3)},
    ("interleaved_1f1b", 8, 2, 5): (1, 1),
    ("interleaved_1f1b", 2, 2, 7): (1, 1),  # in smaller groups: larger ones would keep too much
    ("interleaved_1f1b", 4, 2, 9): (2, 2),
    ("interleaved_1f1b", 5, 3, 7): (3, 3),
}


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


@pytest.mark.parametrize("numbers", MADE, ids=str)
def test_our_schedules_lose_no_message(numbers: tuple[str, int, int, int]) -> None:
    schedule = make(*numbers)
    routes = route(schedule)
    assert simulate(schedule, routes) == routes.num_slots == MADE[numbers]


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
