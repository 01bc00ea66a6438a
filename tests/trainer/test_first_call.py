"""Whatever a script asks of a `Trainer` first, in a fresh process, finds the devices that the config wants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.trainer import small
from tests.trainer.first_calls import NEW, OLD
from trainer import Config, Trainer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each case ended with, by its name."""
    folder = tmp_path_factory.mktemp("first")
    tree = small.tree(small.write_text(folder / "text"), folder / "run")
    tree |= {"mesh": {"data": 2, "virtual_devices": 2}}
    (folder / "new.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    with Trainer(Config.from_dict(tree, {"train.eval_every": None})) as trainer:
        trainer.train(1)
    result = subprocess.run(
        [sys.executable, "-m", "tests.trainer.first_calls", str(folder / "new.yaml"), str(folder / "run")],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return dict(line.split(": ", 1) for line in result.stderr.splitlines() if ": " in line)


@pytest.mark.parametrize("name", [*NEW, *(f"{name} of a run" for name in OLD)])
def test_nothing_has_to_be_asked_before_it(said: dict[str, str], name: str) -> None:
    assert said[name] == "well"


def test_every_public_member_is_asked() -> None:
    public = {name for name in vars(Trainer) if not name.startswith("_")}
    assert public - {"from_run", "go_back"} == set(NEW), "go_back is the loop's, once there is a keeper"
