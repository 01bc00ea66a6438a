"""Steps by hand: whatever is done with a trainer between two of them, the next is the trainer's own."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import jax
import pytest

from tests.trainer import small
from trainer import Config, ConfigError, Trainer
from trainer.failures.rollbacks import Rollback
from trainer.step import Metrics

STEPS = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    small.write_text(folder / "text")
    return folder


def make(folder: Path, name: str) -> Trainer:
    tree = small.tree(folder / "text", folder / name) | {"mesh": {"virtual_devices": 1}, "zero": {"stage": 0}}
    return Trainer(Config.from_dict(tree, {"batch.global": 4, "train.steps": STEPS}), jax.devices()[:1])


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[float]:
    """The loss of each step of a run that nothing comes between."""
    return losses(make(folder, "expected").steps())


@pytest.fixture
def trainer(folder: Path, numbers: Iterator[int] = count()) -> Trainer:
    return make(folder, f"run {next(numbers)}")


def losses(steps: Iterator[Metrics]) -> list[float]:
    return [float(metrics.loss) for metrics in steps]


def test_an_iterator_goes_on_after_training(trainer: Trainer, expected: list[float]) -> None:
    steps = trainer.steps(4)
    first = float(next(steps).loss)
    trainer.train(2)
    assert [first, *losses(steps)] == [expected[0], *expected[3:6]]
    assert trainer.step == 6


def test_an_iterator_to_the_end_of_the_run_ends_there(trainer: Trainer, expected: list[float]) -> None:
    steps = trainer.steps()
    found = [float(next(steps).loss)]
    trainer.train(STEPS - 2)
    assert found + losses(steps) == [expected[0], expected[-1]]
    assert list(trainer.steps()) == []


def test_two_iterators_take_turns(trainer: Trainer, expected: list[float]) -> None:
    one, two = trainer.steps(3), trainer.steps(3)
    found = [float(next(steps).loss) for steps in (one, one, two, one, two, two)]
    assert found == expected[:6]
    assert (list(one), list(two)) == ([], [])


def test_measuring_writing_and_saving_leave_no_trace(trainer: Trainer, expected: list[float]) -> None:
    found = []
    for metrics in trainer.steps(3):
        found.append(float(metrics.loss))
        trainer.evaluate()
        trainer.generate("def", 3)
        trainer.save()
    assert found == expected[:3]
    assert trainer.checkpoints.steps() == [1, 2, 3]


def test_an_iterator_follows_a_rollback(trainer: Trainer, expected: list[float]) -> None:
    """Back at a step that it has made the next batch of, which is left out since."""
    steps = trainer.steps()
    found = [float(next(steps).loss) for _ in range(2)]
    trainer.save()
    trainer.go_back(Rollback(step=2, back_to=2, batches=[2], global_batch=4, reason="a test"))
    found.append(float(next(steps).loss))
    assert found[:2] == expected[:2]
    steps.close()
    again = make(trainer.folder.parent, trainer.folder.name)
    assert losses(again.steps(1)) == found[2:]
    assert found[2] != expected[2]


def test_an_iterator_that_is_let_go_leaves_nothing_behind(trainer: Trainer, expected: list[float]) -> None:
    steps = trainer.steps()
    next(steps)
    del steps
    gc.collect()
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}
    assert losses(trainer.steps(1)) == expected[1:2]


def test_a_batch_that_fails_is_asked_for_again(
    trainer: Trainer, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    list(trainer.steps(1))
    with monkeypatch.context() as broken:
        broken.setattr("trainer.trainer.put_batch", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(trainer.steps(1))
    assert losses(trainer.steps(1)) == expected[1:2]


def test_a_negative_number_is_refused(trainer: Trainer) -> None:
    with pytest.raises(ConfigError, match="steps=-1"):
        trainer.steps(-1)
