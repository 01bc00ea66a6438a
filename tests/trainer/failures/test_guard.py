"""Which steps are told to have gone wrong, from their numbers alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trainer import Config
from trainer.errors import ConfigError
from trainer.failures.config import FailuresConfig
from trainer.failures.guard import Guard

SPIKES = FailuresConfig(on_spike="stop", window=4)


def found(guard: Guard, losses: list[float], first: int = 1, norm: float = 1.0) -> list[int]:
    return [step for step, loss in enumerate(losses, first) if guard.look(step, loss, norm)]


def test_a_spike_is_told_by_the_median_of_the_steps_before() -> None:
    assert found(Guard(SPIKES, every=1), [9.0, 4.0, 4.2, 4.1, 6.0, 6.3, 4.0]) == [6]  # the usual is 4.15, then 5.1


def test_nothing_is_a_spike_before_the_window_is_full() -> None:
    assert found(Guard(SPIKES, every=1), [1.0, 9.0, 1.0, 9.0]) == []


def test_a_level_that_stays_is_the_new_usual() -> None:
    assert found(Guard(SPIKES, every=1), [1.0] * 4 + [5.0] * 6) == [5, 6, 7]


def test_the_gradient_norm_has_a_limit_of_its_own() -> None:
    guard = Guard(SPIKES, every=1)
    found(guard, [1.0] * 4)
    assert guard.look(5, 1.0, 9.0) is None
    trouble = guard.look(6, 1.0, 11.0)
    assert trouble is not None
    assert trouble.why == "its gradient norm, 11, is more than 10 times the usual 1"


@pytest.mark.parametrize(("loss", "norm", "what"), [(math.nan, 1.0, "loss"), (1.0, math.inf, "gradient norm")])
def test_what_is_not_finite_is_told_and_is_no_part_of_the_usual(loss: float, norm: float, what: str) -> None:
    guard = Guard(SPIKES, every=1)
    for step in range(1, 9):
        trouble = guard.look(step, loss, norm)
        assert trouble is not None
        assert (trouble.kind, trouble.why) == ("nonfinite", f"its {what} is not finite")
    assert guard.memory()["window"] == []


def test_steps_in_a_row_that_change_nothing_are_counted_over_a_restart() -> None:
    config = FailuresConfig(on_spike="skip", window=4)
    guard = Guard(config, every=1)
    found(guard, [1.0] * 4 + [math.nan] * 2)
    assert guard.skips == 2
    resumed = Guard(config, every=1)
    resumed.recall(json.loads(json.dumps(guard.memory())))
    trouble = resumed.look(7, 9.0, 1.0)  # a spike
    assert trouble is not None
    assert trouble.skips == resumed.skips == 3
    assert resumed.look(8, 1.0, 1.0) is None
    assert resumed.skips == 0


def test_steps_that_go_wrong_and_are_not_skipped_do_not_count() -> None:
    guard = Guard(FailuresConfig(on_nonfinite="rollback"), every=1)
    found(guard, [math.nan] * 3)
    assert guard.skips == 0


def test_limits_are_renewed_only_when_the_host_has_read_the_steps_before() -> None:
    """With every=5, step 9 is still judged by what was usual up to step 5."""
    losses = [1.0] * 5 + [1.4] * 3 + [1.6, 1.6]
    assert found(Guard(SPIKES, every=5), losses) == [9, 10]
    assert found(Guard(SPIKES, every=1), losses) == []


@pytest.mark.parametrize("at", range(12))
def test_a_restart_changes_nothing(at: int) -> None:
    losses = [3.0, 2.9, math.nan, 3.1, 2.8, 9.0, 2.9, 3.0, 2.7, 8.0, 2.8, math.inf]
    before, after = Guard(SPIKES, every=3), Guard(SPIKES, every=3)
    early = found(before, losses[:at])
    after.recall(json.loads(json.dumps(before.memory(), allow_nan=False)))
    assert early + found(after, losses[at:], at + 1) == found(Guard(SPIKES, every=3), losses)


def test_it_looks_for_no_spikes_unless_asked() -> None:
    assert found(Guard(FailuresConfig(window=1), every=1), [1.0, 100.0]) == []


@pytest.mark.parametrize(
    ("failures", "others", "message"),
    [
        ({"window": 5}, {}, "failures.window: has no effect with failures.on_spike=none (nothing looks for spikes)"),
        ({"steps_back": 5}, {}, "has no effect with neither failures.on_nonfinite=rollback nor"),
        ({"on_nonfinite": "rollback"}, {}, "give train.checkpoint_every"),
        (
            {"on_nonfinite": "rollback", "steps_back": 150},
            {"train": {"checkpoint_every": 100}},
            "keeps none older than 100 steps for sure; use train.keep_checkpoints=3",
        ),
        (
            {"on_nonfinite": "stop"},
            {"precision": {"compute": "float16"}},
            "use failures.on_nonfinite=skip, or bfloat16",
        ),
        ({"on_spike": "stop", "spike_loss": None, "spike_grad_norm": None}, {}, "looks at nothing"),
    ],
)
def test_what_cannot_take_effect_is_refused(failures: Any, others: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config.from_dict({"failures": failures, **others})
    assert message in str(error.value)
