"""Nothing that is printed ends training: no character, no pipe without a reader, no full disk."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.trainer import small
from trainer.display import Lines, LiveDisplay, make_display
from trainer.lines import read_jsonl
from trainer.metrics import StepMetrics
from trainer.streams import lasting, make_console, say_at_the_end
from trainer.tables import wide_console

ROOT = Path(__file__).parents[2]


@pytest.fixture
def broken() -> Iterator[io.TextIOWrapper]:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", encoding="utf-8")
    yield stream
    os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # so that it can be closed
    stream.close()


def step() -> StepMetrics:
    return StepMetrics(
        step=1,
        loss=1.0,
        grad_norm=1.0,
        learning_rate=1e-3,
        tokens=8,
        tokens_per_second=1.0,
        step_seconds=1.0,
        model_flops_per_second=1.0,
    )


@pytest.mark.parametrize("encoding", ["gbk", "ascii", "latin-1"])
def test_a_character_that_the_terminal_does_not_know_is_replaced(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    Lines().say("of ☃²")
    with make_display("runs/☃", 10, dict) as plain:
        plain.say("in ☃")
        plain.step(step())
    with LiveDisplay("runs/☃", 10, dict, make_console(force_terminal=True)) as live:
        live.step(step())
    wide_console().print("a table of ☃")
    stream.flush()
    shown = stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert "of ?" in shown
    assert "in ?" in shown
    assert "a table of ?" in shown


def test_a_reader_that_has_left_is_not_missed(monkeypatch: pytest.MonkeyPatch, broken: io.TextIOWrapper) -> None:
    monkeypatch.setattr(sys, "stdout", broken)
    monkeypatch.setattr(sys, "stderr", broken)
    Lines().say("gone")
    with make_display("runs/a", 10, dict) as display:
        display.step(step())
    say_at_the_end("error: the end")


def test_a_stream_that_was_closed_or_never_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, io.StringIO()):
        if stream is not None:
            stream.close()
        monkeypatch.setattr(sys, "stdout", stream)
        Lines().say("gone")
        with make_display("runs/a", 10, dict) as display:
            display.step(step())


def test_what_comes_after_a_lost_reader_is_lost_and_told_once(
    broken: io.TextIOWrapper, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = lasting(broken.fileno(), broken)
    for _ in range(3):
        print("gone", file=stream, flush=True)
    stream.buffer.write(b"gone")
    stream.close()
    assert capfd.readouterr().err.count("WARNING: standard output can no longer be written") == 1


def test_a_stream_that_does_not_block_is_waited_for() -> None:
    """A pipe of 64 KiB, read slowly; print would raise BlockingIOError."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    reader = subprocess.Popen(["wc", "-c"], stdin=reading, stdout=subprocess.PIPE)
    os.close(reading)
    with os.fdopen(writing, "w") as like:
        print("x" * 1_000_000, file=lasting(writing, like), end="", flush=True)
    assert reader.communicate()[0] == b"1000000\n"


def test_training_outlasts_its_reader(tmp_path: Path) -> None:
    """As in `meshwright train ... | head -1`, where the terminal cannot show the run's name."""
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run²")
    tree |= {"mesh": {"virtual_devices": 1}, "train": {"steps": 2, "log_every": 1}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer", "train", str(tmp_path / "x.yaml")],
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(120), said.count("\n")) == (0, 1), said
    assert said.startswith("WARNING: standard output can no longer be written")
    assert [record["step"] for record in read_jsonl(tmp_path / "run²/metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_stream_that_is_closed(tmp_path: Path, closed: str) -> None:
    code = "from trainer.streams import open_streams; open_streams(); print(open(__file__).fileno() > 2); print('²')"
    script = tmp_path / "script.py"
    script.write_text(code + f"; assert open({str(script)!r}).fileno() > 2\n", encoding="utf-8")
    command = f'"$0" "$1" {closed}'
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "gbk", "PYTHONDONTWRITEBYTECODE": "1"}
    assert subprocess.run(["sh", "-c", command, sys.executable, str(script)], env=environment).returncode == 0
