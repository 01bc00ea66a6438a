"""events.jsonl: what happened to a run, for other tools to read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.events import EVENTS, FILE, Events
from trainer.folder_lock import FolderLock, last_sign
from trainer.lines import read_jsonl


def test_a_run_tells_what_happens_and_what_it_costs(tmp_path: Path) -> None:
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    Trainer(Config.from_dict(tree, {"train.steps": 4})).train(3)
    Trainer(Config.from_dict(tree, {"train.steps": 4})).train()
    events = list(read_jsonl(tmp_path / "run" / FILE))
    told = [(event["event"], event["step"]) for event in events]
    first = [("start", 0), ("compile", 1), ("evaluation", 2), ("save", 2), ("evaluation", 3), ("save", 3), ("end", 3)]
    assert told == [*first, ("restart", 3), ("compile", 4), ("evaluation", 4), ("save", 4), ("end", 4)]
    assert {event["event"] for event in events} <= EVENTS.keys()
    times = [event["time"] for event in events]
    assert times == sorted(times)
    by_name = {event["event"]: event for event in events}
    assert by_name["start"]["devices"] == 8
    assert (by_name["restart"]["lost_steps"], by_name["restart"]["seconds_lost"]) == (0, 0)
    assert by_name["compile"]["seconds_lost"] > 0
    assert by_name["evaluation"]["loss"] > 0
    assert by_name["end"]["reason"] == "finished"


def test_steps_after_the_checkpoint_are_told_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    overrides = {"train.eval_every": None}
    trainer = Trainer(Config.from_dict(tree, overrides))
    save = Trainer.save

    def breaks_down(trainer: Trainer, *args: Any, **more: Any) -> None:
        if trainer.step == 4:
            raise RuntimeError("the machine burns")
        save(trainer, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", breaks_down)
        with pytest.raises(RuntimeError):
            trainer.train()
    Trainer(Config.from_dict(tree, overrides)).train()
    events = list(read_jsonl(tmp_path / "run" / FILE))
    ends = [event["reason"] for event in events if event["event"] == "end"]
    assert ends == ["the machine burns", "finished"]
    restart = next(event for event in events if event["event"] == "restart")
    assert (restart["step"], restart["lost_steps"]) == (2, 2)
    assert restart["seconds_lost"] > 0
    assert restart["last_seen"] <= restart["time"]


def test_steps_that_nobody_logged_are_told_as_lost_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed has told nothing since its last line, and leaves only its sign of life."""
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    overrides = {"train.eval_every": None, "train.log_every": 100, "train.steps": 9, "train.checkpoint_every": 4}
    sign = FolderLock.sign

    def killed(lock: FolderLock, step: int) -> None:
        sign(lock, step)
        if step >= 5:
            raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(FolderLock, "sign", killed)
        patch.setattr(Events, "tell", lambda *_, **__: None)
        with pytest.raises(RuntimeError):
            Trainer(Config.from_dict(tree, overrides)).train()
    reached = last_sign(tmp_path / "run")
    Trainer(Config.from_dict(tree, overrides)).train()
    (restart,) = (event for event in read_jsonl(tmp_path / "run" / FILE) if event["event"] == "restart")
    assert reached
    assert restart["step"] == 4
    assert restart["lost_steps"] == reached.step - 4 > 0
    assert restart["last_seen"] == pytest.approx(reached.time)


def test_a_reason_holds_no_password(tmp_path: Path) -> None:
    Events(tmp_path).tell("failed_save", 3, reason="no route to https://me:s3cr3t@host/bucket")
    (record,) = read_jsonl(tmp_path / FILE)
    assert record["reason"] == "no route to https://***@host/bucket"


def test_numbers_that_are_not_finite_are_null_and_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.tell("skip", 3, loss=math.nan, grad_norm=math.inf)
    (record,) = read_jsonl(tmp_path / FILE)
    assert (record["loss"], record["grad_norm"]) == (None, None)
    Events(tmp_path / "absent").tell("skip", 3)
