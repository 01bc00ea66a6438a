"""A run whose weights are no longer finite: its last good checkpoint stays, and it does not end as if all were well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.errors import TrainingError
from trainer.keeper import OnDevices

LAYOUTS: dict[str, dict[str, Any]] = {
    "on devices": {"zero.stage": 3},
    "on accelerators": {"zero.stage": 3},
    "offloaded": {"mesh": {"virtual_devices": 1}, "offload.optimizer": "host"},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_text(tmp_path_factory.mktemp("corpus") / "text")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_layout_saves_it(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Initial weights, of which some are infinite."""
    if layout == "on accelerators":  # which look themselves
        monkeypatch.setattr("trainer.checkpoint.finite.is_in_host_memory", lambda array: False)
        monkeypatch.setattr("trainer.checkpoint.write.is_in_host_memory", lambda array: False)
    config = Config.from_dict(small.tree(text, tmp_path / "run"), LAYOUTS[layout] | {"model.init_std": 2e38})
    trainer = Trainer(config, jax.devices()[: config.mesh.num_devices])
    with pytest.raises(TrainingError, match=r"step 0 is not saved: parameters\..* hold .*nothing is saved yet"):
        trainer.save()
    assert not list((tmp_path / "run/checkpoints").iterdir())


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the update of a step come out wrong, once, though its loss and gradient are finite."""

    def at(bad: int) -> None:
        step, waits = OnDevices.step, [bad]

        def broken(keeper: OnDevices, *arguments: Any) -> Any:
            metrics = step(keeper, *arguments)
            if waits == [int(keeper.state.step)]:
                waits.clear()
                weights = keeper.state.parameters
                weights = weights | {"embedding.weight": weights["embedding.weight"] * jnp.nan}
                keeper.state = keeper.state._replace(parameters=weights)
            return metrics

        monkeypatch.setattr(OnDevices, "step", broken)

    return at


@pytest.fixture
def make(text: Path, tmp_path: Path) -> Callable[[str], Trainer]:
    """The run, by what it does about what is not finite."""

    def trainer(policy: str) -> Trainer:
        overrides = {"failures.on_nonfinite": policy, "train.eval_every": None}
        return Trainer(Config.from_dict(small.tree(text, tmp_path / "run"), overrides))

    return trainer


def test_the_run_ends_and_the_last_good_checkpoint_stays(
    make: Callable[[str], Trainer], tmp_path: Path, breaks: Callable[[int], None]
) -> None:
    trainer = make("skip")
    breaks(4)
    with pytest.raises(TrainingError, match=r"step 4 is not saved: parameters.embedding.weight hold .*that of step 2"):
        trainer.train()
    assert trainer.checkpoints.steps() == [2]
    assert "step 4 is not saved" in (tmp_path / "run/events.jsonl").read_text().splitlines()[-1]


def test_or_it_goes_back(make: Callable[[str], Trainer], breaks: Callable[[int], None]) -> None:
    trainer = make("rollback")
    breaks(4)
    trainer.train()
    assert trainer.checkpoints.steps() == [2, 4]
    (rollback,) = trainer.rollbacks.done
    assert (rollback.step, rollback.back_to) == (4, 2)
