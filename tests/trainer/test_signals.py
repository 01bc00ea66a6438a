"""Ctrl-C and SIGTERM: the first is a wish, a Ctrl-C after it is an order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer import small
from trainer import Config, Trainer, signals
from trainer.display import PlainDisplay
from trainer.signals import StopRequest


@pytest.fixture
def heard() -> list[signal.Signals]:
    return []


@pytest.fixture
def stop(heard: list[signal.Signals]) -> StopRequest:
    return StopRequest(heard.append)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_and_answered(
    stop: StopRequest, heard: list[signal.Signals], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with stop:
        assert stop.signal is None
        signal.raise_signal(number)
        assert stop.signal is number
        answered(heard)
    assert heard == [number]
    assert signal.getsignal(number) is before


def answered(heard: list[signal.Signals]) -> None:
    """The answer comes from a thread of its own."""
    for _ in range(500):
        if heard:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_after_that_stops_at_once(stop: StopRequest, first: signal.Signals) -> None:
    with stop:
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_scheduler_may_say_it_twice(stop: StopRequest) -> None:
    with stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert stop.signal is signal.SIGTERM


def test_who_says_it_again_later_means_it(stop: StopRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "TWICE", 0.01)
    with stop:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.02)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_a_thread_sees_none_and_changes_nothing(stop: StopRequest) -> None:
    before = signal.getsignal(signal.SIGINT)

    def use() -> None:
        with stop:
            found.append(signal.getsignal(signal.SIGINT))

    found: list[object] = []
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.fixture
def at_step_2(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sends so many Ctrl-C when step 2 is told."""
    tell = PlainDisplay.step

    def control(count: int) -> None:
        def step(display: PlainDisplay, metrics: object) -> None:
            tell(display, metrics)  # type: ignore[arg-type]
            for _ in range(count if metrics.step == 2 else 0):  # type: ignore[attr-defined]
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(PlainDisplay, "step", step)

    return control


def test_training_stops_as_it_is_asked_to(tmp_path: Path, at_step_2: Callable[[int], None]) -> None:
    """Once: after the next step, saved. Twice: there and then, and only the steps since the last save are lost."""
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    tree["mesh"] = {"data": -1}
    tree["train"] = {"steps": 5, "log_every": 1}
    trainer = Trainer(Config.from_dict(tree))
    at_step_2(1)
    trainer.train()
    assert (trainer.step, trainer.stopped_by) == (3, signal.SIGINT)
    assert trainer.checkpoints.steps() == [3]

    at_step_2(0)
    trainer.train()
    assert (trainer.step, trainer.stopped_by) == (5, None)

    tree["run"]["dir"] = str(tmp_path / "impatient")
    impatient = Trainer(Config.from_dict(tree))
    at_step_2(2)
    with pytest.raises(KeyboardInterrupt):
        impatient.train()
    assert (impatient.step, impatient.checkpoints.steps()) == (2, [])
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}


def test_a_signal_during_the_last_step_has_stopped_nothing(tmp_path: Path, at_step_2: Callable[[int], None]) -> None:
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    tree["mesh"] = {"data": -1}
    tree["train"] = {"steps": 2, "log_every": 1}
    trainer = Trainer(Config.from_dict(tree))
    at_step_2(1)
    trainer.train()
    assert (trainer.step, trainer.stopped_by) == (2, None)


@pytest.mark.parametrize(("seconds", "is_warned"), [(1e-6, True), (600, False)])
def test_a_deadline_that_is_too_short_for_a_checkpoint_is_said(
    tmp_path: Path,
    at_step_2: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    is_warned: bool,
) -> None:
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    tree["mesh"] = {"data": -1}
    tree["train"] = {"steps": 5, "log_every": 1, "checkpoint_every": 1, "stop_seconds": seconds}
    at_step_2(1)
    Trainer(Config.from_dict(tree)).train()
    said = capsys.readouterr().out
    assert "SIGINT: stopped after step 3, saved" in said
    assert ("WARNING: 0.0 s are left of train.stop_seconds=1e-06, and the last checkpoint took " in said) == is_warned
