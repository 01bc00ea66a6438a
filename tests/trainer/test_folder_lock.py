"""A run's folder is written by one process, and in it by one trainer; whoever only reads needs no leave."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.trainer import small
from trainer import Config, ConfigError, Trainer
from trainer.display import PlainDisplay
from trainer.file_lock import try_to_lock
from trainer.folder_lock import IN_USE, FolderLock

USES: dict[str, Callable[[Trainer], Any]] = {
    "steps": lambda trainer: trainer.steps(1),
    "save": lambda trainer: trainer.save(),
    "train": lambda trainer: trainer.train(1),
}


def make(folder: Path, run: str = "run") -> Trainer:
    tree = small.tree(folder / "text", folder / run) | {"mesh": {"virtual_devices": 1}, "zero": {"stage": 0}}
    return Trainer(Config.from_dict(tree, {"batch.global": 4}), jax.devices()[:1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, and a run of one step."""
    folder = tmp_path_factory.mktemp("lock")
    small.write_text(folder / "text")
    with make(folder) as trainer:
        list(trainer.steps(1))
        trainer.save()
    return folder


class Other:
    """Another process, as far as locks know: it opens the file for itself."""

    def __init__(self, run: Path) -> None:
        self.file = os.open(run / IN_USE, os.O_RDWR)

    def __enter__(self) -> bool:
        return try_to_lock(self.file)

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def is_free(folder: Path) -> bool:
    with Other(folder / "run") as taken:
        return taken


@pytest.mark.parametrize("use", USES)
def test_nothing_is_written_where_another_process_trains(saved: Path, use: str) -> None:
    trainer = make(saved)
    with Other(saved / "run"):
        words = rf"run is in use: process {os.getpid()} trains in it; wait for it, stop it \(in Python: trainer.close"
        with pytest.raises(ConfigError, match=words):
            USES[use](trainer)
        assert trainer.checkpoints.steps() == [1]
        assert trainer.evaluate()["tokens"] > 0
        assert Trainer.from_run(saved / "run").generate("x", 2).startswith("x")


@pytest.mark.parametrize("use", ["steps", "save"])
def test_it_is_held_until_the_trainer_is_closed(saved: Path, use: str) -> None:
    with make(saved) as trainer:
        assert is_free(saved)
        USES[use](trainer)
        assert not is_free(saved)
    assert is_free(saved)


@pytest.mark.parametrize("use", USES)
def test_a_closed_trainer_writes_no_more_and_reads_on(saved: Path, use: str) -> None:
    trainer = make(saved)
    trainer.close()
    with pytest.raises(ConfigError, match="this Trainer is closed; make a new Trainer, which goes on from the newest"):
        USES[use](trainer)
    assert trainer.step == 1
    assert trainer.evaluate()["tokens"] > 0


def test_a_trainer_that_nothing_refers_to_leaves_the_folder(saved: Path) -> None:
    """At once: a user's next line may be a command."""
    gc.collect()
    gc.disable()
    try:
        trainer = make(saved)
        next(trainer.steps(1))
        del trainer
        assert is_free(saved)
    finally:
        gc.enable()


def test_the_newest_trainer_of_a_process_has_the_folder(saved: Path) -> None:
    """A notebook's cell is run again, and something still refers to the trainer before."""
    older = make(saved)
    steps = older.steps()
    next(steps)
    newer = make(saved)
    list(newer.steps(1))
    words = "another Trainer of this process has taken .*run since; make a new Trainer"
    for use in USES:
        with pytest.raises(ConfigError, match=words):
            USES[use](older)
    with pytest.raises(ConfigError, match=words):
        next(steps)
    older.close()
    assert not is_free(saved)
    assert older.step == newer.step == 2
    newer.close()
    assert is_free(saved)


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError, match=r"another Trainer of this process trains in .*own; wait for it") as told:
        make(folder, "own").steps(1)
    return str(told.value).split(str(folder))[0].strip()


def test_a_trainer_that_trains_is_not_put_out(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(PlainDisplay, "step", lambda *_: seen.append(refused(saved)))
    with make(saved, "own") as trainer:
        trainer.train(1)
    assert seen == ["another Trainer of this process trains in"]


def test_a_folder_that_was_removed_and_made_again_is_taken_anew(tmp_path: Path) -> None:
    older, newer = FolderLock(tmp_path / "run"), FolderLock(tmp_path / "run")
    older.take()
    shutil.rmtree(tmp_path / "run")
    newer.take()
    assert not is_free(tmp_path)
    newer.close()
    assert is_free(tmp_path)


def test_a_folder_that_cannot_be_locked_is_said(tmp_path: Path) -> None:
    Path(tmp_path, "run").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot be locked .*give another run.dir"):
        FolderLock(tmp_path / "run").take()


def test_a_trainer_that_nobody_has_any_more_leaves_its_folder(saved: Path, tmp_path: Path) -> None:
    """At once, though Python has not collected anything."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    gc.disable()
    try:
        make(tmp_path).train(1)
        assert is_free(tmp_path)
    finally:
        gc.enable()
