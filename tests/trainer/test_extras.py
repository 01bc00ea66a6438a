"""A package that is missing is said before text is tokenised and devices are started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.errors import ConfigError


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[[dict[str, Any]], Trainer]:
    text = small.write_text(tmp_path / "text", 4)
    return lambda overrides: Trainer(Config.from_dict(small.tree(text, tmp_path / "run"), overrides))


@pytest.mark.parametrize(
    ("package", "overrides", "message"),
    [
        (
            "wandb",
            {"run.wandb": {}},
            r"run.wandb is set, and wandb is not installed; pip install 'meshwright\[wandb\]'",
        ),
        ("numba", {"offload.optimizer": "host"}, "offload.optimizer is set, and numba is not installed; pip install"),
    ],
)
def test_it_is_said_before_any_work(
    trainer: Callable[[dict[str, Any]], Trainer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    overrides: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(Trainer, "program", None)  # no devices either
    with pytest.raises(ConfigError, match=message):
        trainer(overrides).train()
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_steps_need_what_changes_the_state_and_no_log(
    trainer: Callable[[dict[str, Any]], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ConfigError) as refused:
        trainer({"run.wandb": {}, "offload.optimizer": "host"}).steps(1)
    assert "numba" in str(refused.value)
    assert "wandb" not in str(refused.value)


def test_a_folder_of_that_name_is_no_package(
    trainer: Callable[[dict[str, Any]], Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B leaves one where it writes."""
    (tmp_path / "here/wandb").mkdir(parents=True)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), *(p for p in sys.path if not Path(p, "wandb").is_dir())])
    with pytest.raises(ConfigError, match="wandb is not installed"):
        trainer({"run.wandb": {}}).train()
