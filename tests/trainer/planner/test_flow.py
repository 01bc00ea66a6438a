"""Bubbles and what is alive: the formulas of the papers, and the tables that our executor runs."""

from __future__ import annotations

import pytest

from sharding.pipeline import makers
from trainer.planner.flow import asynchronous, lockstep


def test_asynchronous_1f1b_keeps_fewer_on_later_stages() -> None:
    flow = asynchronous(4, 1, 16)
    assert flow.rounds == 16 + 3
    assert flow.alive == (4, 3, 2, 1)
    assert asynchronous(4, 1, 2).alive == (2, 2, 2, 1)


def test_interleaving_divides_the_bubble_and_keeps_the_paper_s_share_more() -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (P-1)/(P·V) of the activations of a stage, on the first."""
    flow = asynchronous(4, 2, 16)
    assert flow.rounds / 2 == 16 + 3 / 2
    assert flow.alive[0] == 4 * 2 * (1 + 3 / 8)
    assert flow.alive == (11, 9, 7, 5)


def test_a_batch_that_does_not_divide() -> None:
    flow = asynchronous(4, 1, 2048 / 48)
    assert flow.rounds == pytest.approx(42.67 + 3, abs=0.01)
    assert flow.alive[0] == 4


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 3)])
def test_lockstep_is_the_table_that_is_run(name: str, chunks: int) -> None:
    table = makers.make(name, 4, chunks, 12)
    flow = lockstep(name, 4, chunks, 12)
    assert flow.rounds == pytest.approx(chunks * 12 + 3)
    assert flow.alive == (table.num_slots,) * 4


def test_one_device_has_neither_stages_nor_a_bubble() -> None:
    assert lockstep("1f1b", 1, 1, 5).rounds == 5
    assert lockstep("1f1b", 1, 1, 5).alive == (1,)
