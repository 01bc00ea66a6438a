"""A run's folder takes a run back in, and never another one."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.errors import ConfigError
from trainer.run_folder import PACKAGES, RunFolder, describe_environment

CONFIG: dict[str, Any] = {
    "model": {"preset": None, "layers": 4, "rope_scaling": None, "scan_layers": True},
    "mesh": {"data": 1, "tensor": 1},
    "pipeline": {"schedule": "1f1b", "layers": None},
    "zero": {"stage": 0},
    "batch": {"global": 32, "micro": None, "sequence": 256},
    "precision": {"compute": "float32"},
    "recompute": {"policy": "none"},
    "attention": {"implementation": "auto", "over": "document"},
    "optimizer": {"name": "adamw", "learning_rate": 3e-4, "epsilon": 1e-8},
    "data": {"path": "stdlib", "tokenizer": None, "prefetch": 2},
    "train": {"steps": 1000, "log_every": 10},
    "run": {"name": "run", "wandb": None},
    "seed": 0,
}


def changed(key: str, value: object) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    *parents, last = key.split(".")
    section = config
    for parent in parents:
        section = section[parent]
    section[last] = value
    return config


def environment(data_hash: str | None = "abc") -> dict[str, Any]:
    return {"data_hash": data_hash}


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    """The folder of a run that has logged a step."""
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.open(CONFIG, environment())
    (folder.path / "metrics.jsonl").write_text('{"step": 10}\n')
    return folder


def test_a_new_folder_holds_the_config_and_the_environment(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    assert folder.open(CONFIG, describe_environment(["cpu:0"], "abc")) == []
    text = (folder.path / "config.yaml").read_text()
    assert list(yaml.safe_load(text).items()) == list(CONFIG.items())  # in the order of the config
    assert f"meshwright train {folder.path}/config.yaml" in text
    (start,) = json.loads((folder.path / "environment.json").read_text())
    assert start["devices"] == ["cpu:0"]
    assert set(start["packages"]) == set(PACKAGES)
    assert start["packages"]["jax"]
    assert {"python", "platform", "host", "start", "git_commit", "data_hash"} <= set(start)


def test_every_start_leaves_its_own_record(begun: RunFolder) -> None:
    begun.open(CONFIG, environment() | {"devices": ["another"]})
    first, second = json.loads((begun.path / "environment.json").read_text())
    assert "devices" not in first
    assert second["devices"] == ["another"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.layers", 8),
        ("model.rope_scaling", {"factor": 8.0}),
        ("batch.sequence", 512),
        ("attention.over", "sequence"),
        ("optimizer.name", "sgd"),
        ("seed", 1),
    ],
)
def test_another_run_is_refused_with_the_key_and_a_way_out(begun: RunFolder, key: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        begun.open(changed(key, value), environment())
    assert f"{key} was" in str(error.value)
    assert f"and is {value}" in str(error.value)
    assert "run.name" in str(error.value)
    assert yaml.safe_load((begun.path / "config.yaml").read_text()) == CONFIG


def test_all_differing_keys_are_listed(begun: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"(?s)seed was 0 and is 1.*or move") as error:
        begun.open(changed("model.layers", 8) | {"seed": 1, "mesh": {"data": 2}}, environment())
    assert "model.layers was 4 and is 8" in str(error.value)
    assert "mesh" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mesh.data", 8),
        ("pipeline.schedule", "gpipe"),
        ("pipeline.layers", [1, 3]),
        ("zero.stage", 3),
        ("recompute.policy", "full"),
        ("batch.micro", 4),
        ("train.log_every", 1),
        ("run.wandb", {"project": "p"}),
        ("model.scan_layers", False),
        ("data.prefetch", 8),
        ("data.path", "other/*.txt"),
        ("data.tokenizer", "tokenizer.json"),
    ],
)
def test_what_does_not_change_learning_may_change_without_a_word(begun: RunFolder, key: str, value: object) -> None:
    assert begun.open(changed(key, value), environment()) == []
    assert yaml.safe_load((begun.path / "config.yaml").read_text()) == changed(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer.learning_rate", 1e-3),
        ("batch.global", 64),
        ("precision.compute", "bfloat16"),
        ("attention.implementation", "pallas"),
        ("train.steps", 2000),
    ],
)
def test_what_steers_learning_may_change_and_is_said(begun: RunFolder, key: str, value: object) -> None:
    (note,) = begun.open(changed(key, value), environment())
    assert note.startswith(f"{key} was ")


def test_a_run_of_an_older_version_goes_on(begun: RunFolder) -> None:
    assert begun.open(changed("model.new_field", True), environment()) == ["model.new_field is new"]
    assert begun.open(CONFIG, environment()) == ["model.new_field is gone"]


def test_changed_data_is_refused(begun: RunFolder) -> None:
    begun.open(CONFIG, environment(None))  # not known: not compared, and the earlier one stands
    with pytest.raises(ConfigError, match=r"data\.path has changed \(abc -> def\)"):
        begun.open(CONFIG, environment("def"))


def test_text_of_another_place_is_told_by_what_it_is(begun: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"changed \(abc -> def\)\n  data\.path was stdlib and is other/\*\.txt"):
        begun.open(changed("data.path", "other/*.txt"), environment("def"))


def test_a_tokenizer_is_told_by_its_tokens(begun: RunFolder) -> None:
    begun.open(CONFIG, environment() | {"tokenizer_hash": "t"})
    with pytest.raises(ConfigError, match=r"data\.tokenizer has other tokens \(t -> u\)"):
        begun.open(CONFIG, environment() | {"tokenizer_hash": "u"})


def test_a_run_that_failed_before_its_first_step_may_be_corrected(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.open(CONFIG, environment())
    (folder.path / "metrics.jsonl").touch()
    (folder.path / "checkpoints").mkdir()
    assert folder.open(changed("model.layers", 8), environment()) == []
    (folder.path / "checkpoints" / "10").mkdir()
    with pytest.raises(ConfigError, match=r"model\.layers"):
        folder.open(CONFIG, environment())


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"run\.dir=.*not a run's folder"):
        RunFolder(tmp_path).open(CONFIG, environment())
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_users_own_config_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1")
    with pytest.raises(ConfigError, match=r"is not a run's folder"):
        RunFolder(tmp_path).open(CONFIG, environment())
    assert (tmp_path / "config.yaml").read_text() == "seed: 1"


def test_a_check_leaves_nothing_behind(tmp_path: Path, begun: RunFolder) -> None:
    RunFolder(tmp_path / "new").check(CONFIG)
    assert not (tmp_path / "new").exists()
    before = {file: file.read_bytes() for file in begun.path.iterdir()}
    assert begun.check(changed("train.steps", 2000)) == ["train.steps was 1000 and is 2000"]
    assert {file: file.read_bytes() for file in begun.path.iterdir()} == before


def test_killed_while_writing_the_first_file(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.tmp").write_text("mod")
    RunFolder(tmp_path).open(CONFIG, environment())
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == CONFIG


def test_outside_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_environment([], None)["git_commit"] is None
