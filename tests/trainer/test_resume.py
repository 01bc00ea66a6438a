"""A run goes on as if it had never stopped, on any mesh, ZeRO stage and micro-batch; and is read the same on any."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from trainer import Config, Trainer
from trainer.data.batches import TrainBatches

HALF = 10
GOES_ON = {
    "as_before_but_longer": {"train.steps": 4 * HALF},
    "data2_tensor2_zero3": {"mesh": {"data": 2, "tensor": 2, "virtual_devices": 4}, "zero.stage": 3},
    "pipeline2_tensor2_interleaved": {
        "mesh": {"pipeline": 2, "tensor": 2, "virtual_devices": 4},
        "pipeline": {"schedule": "interleaved_1f1b", "virtual_stages": 2},
        "batch.micro": 4,
    },
    "data3_zero2_accumulate2": {"mesh": {"data": 3, "virtual_devices": 3}, "zero.stage": 2, "batch.micro": 2},
}


@dataclass(frozen=True)
class Second:
    """What the second half of a run gave, and what was read from it before."""

    evaluation: dict[str, float]
    likeliest: str
    sampled: str
    batches: list[dict[str, np.ndarray]]
    losses: np.ndarray
    state: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Half of a run on data 4 under ZeRO 1, saved. The schedule is constant, so the run may become longer."""
    folder = tmp_path_factory.mktemp("resume")
    config = {
        "model": {"layers": 5, "hidden": 24, "heads": 4, "kv_heads": 2, "ffn": 40, "vocab": 290, "context": 32},
        "mesh": {"data": 4, "virtual_devices": 4},
        "zero": {"stage": 1},
        "batch": {"global": 12, "sequence": 32},
        "optimizer": {"name": "adamw", "learning_rate": 0.01, "epsilon": 1e-3, "schedule": "constant"},
        "data": {"path": str(_write_text(folder / "text")), "holdout": 0.2},
        "train": {"steps": 2 * HALF},
        "run": {"dir": str(folder / "run")},
    }
    trainer = Trainer(Config.from_dict(config))
    for _ in trainer.steps(HALF):
        pass
    trainer.save()
    trainer.checkpoints.wait()
    return trainer


@pytest.fixture(scope="module")
def unbroken(stopped: Trainer) -> Second:
    return _second_half(stopped)


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.sweep if n == "data3_zero2_accumulate2" else ()) for n in GOES_ON],
)
def resumed(request: pytest.FixtureRequest, stopped: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Second:
    folder = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(stopped.folder, folder)
    return _second_half(Trainer.from_run(folder, GOES_ON[request.param]))


def _write_text(folder: Path) -> Path:
    """Words in random order: something to learn, and something left to chance."""
    words = [f"{a}{b}" for a in ("ba", "ne", "so", "ti") for b in ("ka", "lo", "mi", "ru")]
    pick = random.Random(0)
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(" ".join(pick.choices(words, k=pick.randint(5, 120))))
    return folder


def _second_half(trainer: Trainer) -> Second:
    evaluation = trainer.evaluate()
    texts = [trainer.generate("baka", 12, temperature=temperature, seed=1) for temperature in (0.0, 1.0)]
    batches, rows = [], TrainBatches.rows

    def record(self: TrainBatches, step: int, low: int, high: int) -> Any:
        batches.append({"step": np.asarray(step), **rows(self, step, low, high)})
        return rows(self, step, low, high)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainBatches, "rows", record)
        losses = np.array([metrics.loss for metrics in trainer.steps(HALF)])
    return Second(evaluation, *texts, batches, losses, jax.device_get(trainer.state))


def test_the_losses_are_the_same(resumed: Second, unbroken: Second) -> None:
    np.testing.assert_allclose(resumed.losses, unbroken.losses, rtol=1e-5)
    assert unbroken.losses[-1] < unbroken.losses[0], "there is something to lose"


@pytest.mark.parametrize("resumed", ["as_before_but_longer"], indirect=True)
def test_more_steps_do_not_change_the_past(resumed: Second, unbroken: Second) -> None:
    np.testing.assert_array_equal(resumed.losses, unbroken.losses)


def test_the_weights_and_moments_are_the_same(resumed: Second, unbroken: Second) -> None:
    assert resumed.state.keys() == unbroken.state.keys()
    for name, expected in unbroken.state.items():
        np.testing.assert_allclose(resumed.state[name], expected, atol=1e-4 * np.abs(expected).max(), err_msg=name)


def test_the_batches_are_the_same(resumed: Second, unbroken: Second) -> None:
    assert len(resumed.batches) == len(unbroken.batches) == HALF
    for found, expected in zip(resumed.batches, unbroken.batches, strict=True):
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_evaluation_is_the_same(resumed: Second, unbroken: Second) -> None:
    assert resumed.evaluation == pytest.approx(unbroken.evaluation, rel=1e-5)


def test_generation_is_the_same(resumed: Second, unbroken: Second) -> None:
    assert resumed.likeliest == unbroken.likeliest
    assert resumed.sampled == unbroken.sampled
    assert unbroken.likeliest != unbroken.sampled
