"""A disk that is full or fails in mid-run costs checkpoints or numbers, and never the training."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from tests.trainer import small
from tests.trainer.test_sinks import tf_records
from trainer import Config, ConfigError, Trainer
from trainer.checkpoint.blocks import BlockWriter
from trainer.cli import app
from trainer.display import Display
from trainer.lines import read_jsonl
from trainer.settings import RunConfig
from trainer.sinks import open_sinks


class Noted(Display):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_text(tmp_path_factory.mktemp("user") / "text")


@pytest.fixture
def make(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Trainer, Noted]]]:
    """A trainer that saves after each of its steps onto a disk that is full for the saves of these numbers."""

    def make(*full: int) -> tuple[Trainer, Noted]:
        saves = itertools.count(1)
        number = 0
        really_opened, really_written = BlockWriter.__init__, os.pwrite

        def opened(writer: BlockWriter, *args: Any) -> None:
            nonlocal number
            number = next(saves)
            really_opened(writer, *args)

        def written(*args: Any) -> int:
            if number in full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return really_written(*args)

        monkeypatch.setattr(BlockWriter, "__init__", opened)
        monkeypatch.setattr("trainer.checkpoint.blocks.os.pwrite", written)
        tree = small.tree(text, tmp_path / "run")
        tree["train"] |= {"checkpoint_every": 1, "eval_every": None, "keep_checkpoints": 2}
        display = Noted()
        monkeypatch.setattr("trainer.loop.make_display", lambda *_: display)
        return Trainer(Config.from_dict(tree)), display

    yield make
    jax.effects_barrier()


def failures(trainer: Trainer) -> list[int]:
    events = [json.loads(line) for line in (trainer.folder / "events.jsonl").read_text().splitlines()]
    return [event["step"] for event in events if event["event"] == "failed_save"]


def test_training_goes_on_and_the_next_save_tries_again(make: Callable[..., tuple[Trainer, Noted]]) -> None:
    trainer, display = make(2, 3)
    trainer.train()
    assert trainer.step == 4
    assert trainer.checkpoints.steps() == [1, 4]
    warnings = [line for line in display.lines if line.startswith("WARNING")]
    assert len(warnings) == len(failures(trainer)) == 2
    for step, warning in zip((2, 3), warnings, strict=True):
        assert f"The checkpoint of step {step} could not be written to {trainer.checkpoints.folder}" in warning
        assert "No space left on device" in warning
        assert warning.endswith("GB free there). Older ones are as they were. The next save tries again.")
    assert sorted(path.name for path in trainer.checkpoints.folder.iterdir()) == ["1", "4"]


def test_a_run_whose_last_save_fails_has_failed(make: Callable[..., tuple[Trainer, Noted]]) -> None:
    trainer, _ = make(3, 4)
    with pytest.raises(OSError, match="The checkpoint of step 4 could not be written"):
        trainer.train()
    assert trainer.checkpoints.steps() == [1, 2]
    trainer.save()  # there is room again, and the state is as it was
    assert trainer.checkpoints.steps() == [2, 4]


def test_a_run_whose_newest_checkpoint_is_damaged_says_so_and_goes_on_from_an_older_one(
    make: Callable[..., tuple[Trainer, Noted]],
) -> None:
    trainer, _ = make()
    trainer.train(2)
    file = trainer.checkpoints.folder / "2/0.bin"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    damaged = pytest.raises(ConfigError, match=r"2 is damaged: \S+: its checksum is .* Remove it to go on from step 1")
    with damaged as error, Trainer(trainer.config) as other:
        other.train()
    advice = str(error.value).partition("meshwright ")[2].split()
    assert CliRunner().invoke(app, [*advice, "--yes"]).exit_code == 0
    again = Trainer(trainer.config)
    assert again.step == 1
    again.train()
    assert again.checkpoints.steps() == [3, 4]


@contextmanager
def no_file_larger_than(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_numbers_that_cannot_be_written_are_told_once_and_do_no_more(tmp_path: Path) -> None:
    """What there was no room for is lost, and nothing that comes after it; TensorBoard begins another file."""
    from tensorboardX.proto.event_pb2 import Event

    said: list[str] = []
    sinks = open_sinks(RunConfig(), tmp_path, {}, step=0, say=said.append)
    sinks.write(1, {"loss": 5.0})
    with no_file_larger_than(1000):
        for step in range(2, 200):
            sinks.write(step, {f"loss{number}": float(step) for number in range(20)})
        full = list(said)
    sinks.write(200, {"loss": 1.0})
    sinks.close()
    assert len(full) == 2
    assert all(
        re.match(r"WARNING: \S+ cannot be written \((File too large|No space left on dev)", text) for text in full
    )
    assert {str(tmp_path / "metrics.jsonl"), str(tmp_path / "tensorboard")} == {text.split()[1] for text in full}
    assert said == full
    *before, after = [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")]
    assert before == list(range(1, len(before) + 1))
    assert (after, len(before) < 10) == (200, True)
    last = max((tmp_path / "tensorboard").iterdir(), key=lambda path: int(path.name.rsplit(".", 1)[1]))
    events = [Event.FromString(record) for record in tf_records(last.read_bytes())]
    assert events[0].file_version == "brain.Event:2"
    assert events[-1].step == 200
