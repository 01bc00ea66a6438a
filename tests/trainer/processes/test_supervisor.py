"""Which ends of processes are started again, and what the user is told; with shells instead of trainers."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.config import Config
from trainer.processes import supervisor
from trainer.processes.children import Children, Command, End
from trainer.processes.own_command import GREETING
from trainer.processes.supervisor import local_start, supervise
from trainer.run_folder import BECAUSE


def shell(*scripts: str) -> list[Command]:
    """Each says first that it is what was meant."""
    return [Command(("sh", "-c", f'echo "${GREETING}" >&2; {script}')) for script in scripts]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited before each restart."""
    waited: list[float] = []
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setenv(BECAUSE, "")  # so that it is as it was, afterwards
    return waited


@pytest.mark.parametrize(
    ("script", "code", "restarts"),
    [
        ("exit 0", 0, 0),
        ("exit 1", 1, 3),
        ("kill -KILL $$", 137, 3),
        ("exit 137", 137, 3),  # as a shell says it of what it ran
        ("exit 2", 2, 0),
        ("exit 3", 3, 0),
        ("exit 130", 130, 0),
        ("exit 143", 143, 0),
    ],
)
def test_what_is_started_again(waits: list[float], script: str, code: int, restarts: int) -> None:
    assert supervise(lambda start: shell(script), 3, lambda text: None) == code
    assert waits == [1, 2, 4][:restarts]


def test_it_ends_well_once_a_start_does(waits: list[float], capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    starts = [shell("exit 1"), shell(f"echo because: ${BECAUSE}")]
    assert supervise(lambda start: starts[start], 5, said.append) == 0
    assert said == [
        "error: process 0 ended with exit code 1",
        "starts again from the newest checkpoint in 1 s (restart 1 of 5 at most)",
    ]
    assert capfd.readouterr().out == "because: process 0 ended with exit code 1\n"


def test_the_last_lines_of_the_one_that_failed_are_shown(waits: list[float], capfd: pytest.CaptureFixture[str]) -> None:
    """Of the first everything is, as it comes; of others nothing, unless they fail."""
    said: list[str] = []
    scripts = ("echo first; sleep 60", "echo second; sleep 60", "echo out; printf 'no disk' >&2; exit 1")
    assert supervise(lambda start: shell(*scripts), 0, said.append) == 1
    ended = "error: process 2 ended with exit code 1, and the others were ended; its last lines:\n  out\n  no disk"
    assert said == [ended]
    assert capfd.readouterr().out == "first\n"


def test_a_wrong_config_is_said_once(waits: list[float], capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    wrong = "echo error: wrong >&2; exit 2"
    assert supervise(lambda start: shell(wrong, f"sleep 1; {wrong}", f"sleep 1; {wrong}"), 0, said.append) == 2
    assert (said, capfd.readouterr().err) == ([], "error: wrong\n")


def test_all_may_take_their_time_to_stop_when_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.processes.children.GRACE", 0.1)
    slow = "trap 'sleep 1; exit 143' TERM; echo here; while :; do sleep 0.02; done"
    quick = slow.replace("sleep 1; ", "")
    with Children(shell(quick, slow)) as children:
        while not children._children[1].lines:
            children._listen(0.05)
        children.send(signal.SIGTERM)
        assert children.wait() == End(0, 143, ())
        assert children._children[1].popen.returncode == 143


def test_one_that_is_stopped_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.processes.children.GRACE", 0.1)
    with Children(shell("kill -STOP $$", "sleep 0.3; exit 1")) as children:
        assert children.wait() == End(1, 1, ())
        assert children._children[0].popen.returncode == -signal.SIGKILL


def test_another_program_that_ends_well_has_not_trained(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others do not wait for it."""
    monkeypatch.setattr("trainer.processes.children.GRACE", 0.1)
    said: list[str] = []
    commands = [*shell("sleep 60"), Command(("sh", "-c", "echo hello"))]
    assert supervise(lambda start: commands, 3, said.append) == 2
    assert said == [
        "error: process 1 ended at once, and was not meshwright but another `trainer`; look what PYTHONPATH has before "
        "it (an empty part of it is the working folder), and the others were ended; its last lines:\n  hello"
    ]


def test_files_of_the_working_folder_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not those named as our modules are, nor as those of others that we import."""
    for name in ("trainer", "models", "sharding", "yaml", "typer"):
        (tmp_path / f"{name}.py").write_text("print('mine')")
    (tmp_path / "wrong.yaml").write_text("train: {step: 1}")
    monkeypatch.chdir(tmp_path)
    start = partial(local_start, Config(), Path("wrong.yaml"), [], 1)
    assert supervise(start, 3, lambda text: None) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "wrong.yaml:1: train.step: unknown key; did you mean" in err
