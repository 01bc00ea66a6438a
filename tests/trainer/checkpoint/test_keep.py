"""Which checkpoints stay."""

from __future__ import annotations

import math
from pathlib import Path

import jax.numpy as jnp
import pytest

from trainer.checkpoint import Checkpoints, Keep
from trainer.config import Config
from trainer.errors import ConfigError

LOSSES = {10: 3.0, 20: 1.0, 30: 2.0, 40: None, 50: 1.5, 60: 1.0}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (Keep(1), [60]),
        (Keep(3), [40, 50, 60]),
        (Keep(1, every=20), [20, 40, 60]),
        (Keep(1, best=1), [20, 60]),
        (Keep(1, best=3), [20, 50, 60]),
        (Keep(2, every=30, best=1), [20, 30, 50, 60]),
        (Keep(9), [10, 20, 30, 40, 50, 60]),
    ],
)
def test_what_any_rule_wants_stays(keep: Keep, kept: list[int]) -> None:
    measured = {step: {} if loss is None else {"eval_loss": loss} for step, loss in LOSSES.items()}
    why = keep.reasons(measured)
    assert [step for step in why if why[step]] == kept


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    losses = {10: math.nan, 20: 2.0, 30: math.inf, 40: 1.0, 50: math.nan, 60: -math.inf}
    why = Keep(1, best=3).reasons({step: {"eval_loss": loss} for step, loss in losses.items()})
    assert why == {10: [], 20: ["one of the best 3"], 30: [], 40: ["best"], 50: [], 60: ["newest"]}


def test_reasons_are_told() -> None:
    measured = {step: {"eval_loss": float(step)} for step in (10, 20, 30, 40)}
    assert Keep(2, every=20, best=2).reasons(measured) == {
        10: ["best"],
        20: ["every 20", "one of the best 2"],
        30: ["one of the newest 2"],
        40: ["newest", "every 20"],
    }


def test_rules_hold_while_a_run_saves_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    """The best of old is removed only when a better one is complete."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5/weights.pt").touch()
    checkpoints = Checkpoints(tmp_path, Keep(1, every=30, best=1))
    there = []
    for step, loss in LOSSES.items():
        measured = {} if loss is None else {"eval_loss": loss}
        checkpoints.save(step, {"x": jnp.ones(3)}, {}, measured)
        checkpoints.wait()
        there.append(checkpoints.steps())
        assert checkpoints.header(step).metrics == measured
    assert there == [
        [5, 10],
        [5, 20],
        [5, 20, 30],
        [5, 20, 30, 40],
        [5, 20, 30, 50],
        [5, 20, 30, 60],
    ]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"keep_every": 1500, "checkpoint_every": 1000}, "none is saved there; use 1000 or 2000"),
        ({"keep_every": 1000}, "none is saved there; give train.checkpoint_every"),
        ({"keep_best": 1, "checkpoint_every": 10}, "give train.eval_every too"),
        ({"keep_best": 1, "eval_every": 10}, "give train.checkpoint_every too"),
    ],
)
def test_a_rule_that_keeps_nothing_is_refused(train: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({"train": train})
