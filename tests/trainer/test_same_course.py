"""What a run is told beside what it learns changes no step of it: how often it logs, how long it is, when it stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.data.batches import TrainBatches
from trainer.schedules import learning_rate

STEPS = 7
ROWS = TrainBatches.rows
SCHEDULE = {"learning_rate": 0.01, "schedule": "cosine", "warmup_steps": 2, "decay_steps": 4}
PLAIN = {"train": {"steps": STEPS, "log_every": 1}}
OTHERWISE = {"train": {"steps": 4, "log_every": 3, "eval_every": 1, "checkpoint_every": 1}, "data.prefetch": 4}
LONGER = {"train": {"steps": STEPS, "log_every": 2, "eval_every": 3, "keep_checkpoints": 1}, "data.prefetch": 1}


@dataclass
class Course:
    """What a run has done, of one piece or of several."""

    config: Config
    num_windows: int = 0
    """Of the text: an epoch."""
    samples: dict[int, np.ndarray] = field(default_factory=dict)
    tokens: dict[int, np.ndarray] = field(default_factory=dict)
    logged: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, np.ndarray] = field(default_factory=dict)


@pytest.fixture(scope="module")
def courses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Course]]:
    """A run of one piece, and one that is stopped, goes on, and logs, evaluates and saves otherwise."""
    folder = tmp_path_factory.mktemp("courses")
    text = small.write_text(folder / "text", num_documents=3)  # so that seven steps are more than an epoch
    with pytest.MonkeyPatch.context() as patch:
        yield [
            _train(text, folder / "plain", [PLAIN], patch),
            _train(text, folder / "otherwise", [OTHERWISE, LONGER], patch),
        ]


def _train(text: Path, run: Path, pieces: list[dict[str, Any]], patch: pytest.MonkeyPatch) -> Course:
    tree = small.tree(text, run) | {"mesh": {"pipeline": 1}, "zero": {"stage": 0}, "optimizer": SCHEDULE}
    course = Course(Config.from_dict(tree, pieces[0]))

    def record(self: TrainBatches, step: int, low: int, high: int) -> Any:
        batch = ROWS(self, step, low, high)
        assert step not in course.samples, "a step that is trained on is made once"
        course.samples[step], course.tokens[step] = batch["samples"], batch["tokens"]
        course.num_windows = len(self.packed)
        return batch

    patch.setattr(TrainBatches, "rows", record)
    for piece in pieces:
        trainer = Trainer(Config.from_dict(tree, piece), jax.devices()[:1])
        trainer.train()
    course.state = jax.device_get(trainer.state)
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    course.logged = [record for record in records if "loss" in record]
    return course


def test_the_samples_are_the_same_and_go_on_past_the_end_of_the_text(courses: list[Course]) -> None:
    plain, otherwise = courses
    assert sorted(plain.samples) == sorted(otherwise.samples) == list(range(STEPS))
    for step in range(STEPS):
        np.testing.assert_array_equal(plain.samples[step], otherwise.samples[step])
        np.testing.assert_array_equal(plain.tokens[step], otherwise.tokens[step])
    ids = np.concatenate([plain.samples[step] for step in range(STEPS)])
    np.testing.assert_array_equal(ids, np.arange(len(ids)))
    assert len(ids) > 2 * plain.num_windows, "three epochs are begun"


def test_losses_and_weights_are_the_same_to_the_bit(courses: list[Course]) -> None:
    plain, otherwise = courses
    losses = {record["step"]: record["loss"] for record in plain.logged}
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert {record["step"] for record in otherwise.logged} == {1, 3, 4, 5, 6, 7}
    for record in otherwise.logged:
        assert record["loss"] == losses[record["step"]]
    for name, expected in plain.state.items():
        np.testing.assert_array_equal(otherwise.state[name], expected, err_msg=name)


def test_the_learning_rate_that_is_logged_is_the_schedules(courses: list[Course]) -> None:
    for course in courses:
        schedule = learning_rate(course.config.optimizer, course.config.train.steps)
        for record in course.logged:
            assert record["learning_rate"] == pytest.approx(float(schedule(record["step"] - 1)), rel=1e-6)
    rates = [record["learning_rate"] for record in courses[0].logged]
    assert rates[0] == pytest.approx(0.005), "the first step of the warm-up learns"
    assert rates[:2] == sorted(rates[:2])
    assert rates[2:] == sorted(rates[2:], reverse=True)
