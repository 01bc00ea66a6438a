"""A run is what it was trained on, however its text is called and wherever that and its folder stand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.trainer import small
from trainer import Config, ConfigError, Trainer
from trainer.cli import app
from trainer.data.tokenizer_files import TOKENIZER

STEPS = 2


def tree(place: Path, **data: Any) -> dict[str, Any]:
    """A run in `place`, of the text there."""
    plain = small.tree(Path("text"), place / "runs/small")
    plain["data"] |= {"cache": str(place.parent / "cache"), **data}
    plain["train"] = {"steps": STEPS, "log_every": 1}
    return plain | {"mesh": {"virtual_devices": 1}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with text, a run, and nothing else."""
    place = tmp_path_factory.mktemp("user") / "place"
    small.write_text(place / "text")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Trainer(Config.from_dict(tree(place))).train()
    return place


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of it, at another place; the first is not there to be found."""
    new = shutil.copytree(trained, tmp_path / "new")
    (trained / "text").rename(trained / "away")
    monkeypatch.chdir(tmp_path)
    yield new
    (trained / "away").rename(trained / "text")


def test_the_runs_config_tells_where_its_text_is(trained: Path) -> None:
    assert Config.load(trained / "runs/small/config.yaml").data.path == str(trained / "text")


@pytest.mark.parametrize("data", [{"path": "new/text"}, {"path": ["new/./text/*.txt"]}, {"tokenizer": True}])
def test_the_same_text_of_another_name_goes_on(place: Path, data: dict[str, Any]) -> None:
    if data.pop("tokenizer", False):
        data = {"path": "new/text", "tokenizer": str(place / "runs/small" / TOKENIZER)}
    trainer = Trainer(Config.from_dict(tree(place, **data), {"train.steps": STEPS + 1}))
    assert trainer.step == STEPS
    trainer.train()
    assert trainer.step == STEPS + 1


def test_another_text_of_the_same_name_does_not(place: Path) -> None:
    (place / "text/0.txt").write_text("other words", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"(?s)text behind data\.path has changed \(.*data\.path was "):
        Trainer(Config.from_dict(tree(place, path="new/text"), {"train.steps": STEPS + 1})).train()


def evaluated(*args: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["eval", "new/runs/small", *args])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_the_runs_own_text_stays_held_out_however_it_is_named(place: Path) -> None:
    own, said = evaluated("data.path=new/text")
    assert "the run's own held-out text: 4 documents" in said
    shutil.copytree(place / "text", "copy")
    assert evaluated("data.path=copy/*.txt") == (own, said)
    with pytest.raises(ConfigError, match="measured on no other"):
        Trainer.from_run(place / "runs/small", {"data.path": "copy", "data.holdout": 0.5}).evaluate()


def test_another_text_is_all_measured_and_said(place: Path) -> None:
    small.write_text(Path("other"), num_documents=25)
    for file in Path("other").iterdir():
        file.write_text(f"new {file.read_text()}", encoding="utf-8")
    assert (
        "all 25 documents of data.path=other, of which no file was in the run's text" in evaluated("data.path=other")[1]
    )


@pytest.mark.parametrize("name", ["text/3.txt", "copy.txt"])
def test_a_file_that_was_trained_on_is_told(trained: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "new.txt").write_text("quite another text " * 20, encoding="utf-8")
    seen = trained / name if name.startswith("text") else shutil.copy(trained / "text/3.txt", tmp_path / name)
    trainer = Trainer.from_run(trained / "runs/small", {"data.path": [str(seen), str(tmp_path / "new.txt")]})
    trainer.evaluate()
    told = trainer.what_is_measured()
    assert f"all 2 documents of data.path=['{seen}'," in told
    assert f"WARNING: 1 of its files were in the run's text, and may have been trained on: {seen}" in told


def test_what_was_held_out_is_not_known_once_the_text_has_changed(place: Path) -> None:
    (place / "text/0.txt").write_text("other words", encoding="utf-8")
    config = tree(place, path="new/text")
    with pytest.raises(ConfigError, match=r"has changed since the run was trained .* held out is not known"):
        Trainer(Config.from_dict(config)).evaluate()


def test_a_run_does_not_read_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "place"
    small.write_text(place)
    for steps in (1, 2):
        config = tree(place, path="place", cache=str(tmp_path / "cache"))
        Trainer(Config.from_dict(config, {"train.steps": steps})).train()
    assert Trainer.from_run(place / "runs/small").corpus.whole.num_documents == 20
    with pytest.raises(ConfigError, match="nothing but what runs have written"):
        Trainer(Config.from_dict(tree(place, path="place/runs/**/*.jsonl"), {"run.dir": "other"})).train()


@pytest.mark.parametrize("key", ["data.cache", "run.compile_cache", "offload.path"])
def test_what_a_run_fills_is_not_among_its_text(key: str) -> None:
    more = {"offload.optimizer": "nvme"} if key == "offload.path" else {}
    with pytest.raises(ConfigError, match=f"{key}=text/made is in data.path=./text, and would be read as text"):
        Config.from_dict({"data": {"path": "./text"}}, {key: "text/made", **more})
    assert Config.from_dict({"data": {"path": "."}}, {key: ".hidden/made", **more})


def test_a_run_that_was_moved_goes_on_where_it_stands(place: Path) -> None:
    run = (place / "runs/small").rename("elsewhere")
    file = run / "config.yaml"
    Trainer(Config.load(file, {"data.path": "new/text", "train.steps": STEPS + 1})).train()
    assert Trainer.from_run(run).step == STEPS + 1
    assert not (place / "runs/small").exists()
