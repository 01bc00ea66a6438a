"""After a rollback: which batch a step trains on, in this run and in one that is resumed."""

from __future__ import annotations

from pathlib import Path

from trainer.failures.rollbacks import Rollback, Rollbacks, batch_of


def rollback(batches: list[int], global_batch: int = 8) -> Rollback:
    return Rollback(step=9, back_to=4, batches=batches, global_batch=global_batch, reason="a spike")


def test_steps_take_the_batches_that_are_not_left_out_in_their_order() -> None:
    left_out = [0, 3, 4, 8]
    assert [batch_of(step, left_out) for step in range(6)] == [1, 2, 5, 6, 7, 9]
    assert batch_of(7, []) == 7


def test_leaving_out_what_comes_later_changes_nothing_before() -> None:
    assert [batch_of(step, [2]) for step in range(5)] == [batch_of(step, [2, 6]) for step in range(5)]


def test_they_are_read_back(tmp_path: Path) -> None:
    rollbacks = Rollbacks(tmp_path, writes=True)
    rollbacks.add(rollback([5, 7]))
    rollbacks.add(rollback([2]))
    again = Rollbacks(tmp_path, writes=True)
    assert again.done == rollbacks.done
    assert again.left_out(global_batch=8) == [2, 5, 7]


def test_with_another_global_batch_the_same_samples_are_left_out(tmp_path: Path) -> None:
    """Batches 5 and 7 of 8 are samples 40 to 47 and 56 to 63."""
    rollbacks = Rollbacks(tmp_path, writes=False)
    rollbacks.add(rollback([5, 7]))
    assert rollbacks.left_out(global_batch=4) == [10, 11, 14, 15]
    assert rollbacks.left_out(global_batch=16) == [2, 3]
    assert not any(tmp_path.iterdir())
