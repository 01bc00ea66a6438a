"""A run on pipeline stages is used as any other: evaluated, asked for text, gone on with on another mesh."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.errors import ConfigError

STAGES = {
    "model.layers": 5,  # one of the four chunks has two, the others one and a place that is empty
    "model.tied": True,
    "mesh": {"pipeline": 2, "data": 2, "tensor": 2},
    "pipeline": {"schedule": "interleaved_1f1b", "virtual_stages": 2},
    "batch.micro": 1,
    "train.steps": 2,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    text = small.write_text(tmp_path_factory.mktemp("user") / "text")
    trainer = Trainer(Config.from_dict(small.tree(text, text.parent / "run"), STAGES))
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def alone(trained: Trainer) -> Trainer:
    """The same run on one device."""
    tree = Config.load(trained.folder / "config.yaml").to_dict() | {"mesh": {"pipeline": 1}}
    return Trainer(Config.from_dict(tree, {"batch.micro": 8}), jax.devices()[:1])


def test_what_is_measured_is_what_one_device_measures(trained: Trainer, alone: Trainer) -> None:
    ours, theirs = trained.evaluate(), alone.evaluate()
    assert ours["tokens"] == theirs["tokens"]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_what_is_written_is_what_one_device_writes(trained: Trainer, alone: Trainer) -> None:
    assert trained.generate("def class", max_tokens=12) == alone.generate("def class", max_tokens=12)


def test_a_run_outlives_its_table(trained: Trainer, tmp_path: Path) -> None:
    """Another schedule serves a run whose CSV file is gone."""
    run = shutil.copytree(trained.folder, tmp_path / "run")
    text = (run / "config.yaml").read_text()
    assert "schedule: interleaved_1f1b\n" in text
    (run / "config.yaml").write_text(text.replace("schedule: interleaved_1f1b\n", "schedule: gone.csv\n"))
    with pytest.raises(ConfigError, match=r"gone\.csv: there is no such file in"):
        Trainer.from_run(run)
    assert Trainer.from_run(run, ["pipeline.schedule=interleaved_1f1b"]).config.pipeline == trained.config.pipeline


def test_shorter_texts_compile_nothing(trained: Trainer) -> None:
    trained.generate("def", max_tokens=2)
    program = trained.program.generate
    size = program._cache_size()  # type: ignore[attr-defined]
    trained.generate("def class return if", max_tokens=5)
    assert program._cache_size() == size == 1  # type: ignore[attr-defined]
