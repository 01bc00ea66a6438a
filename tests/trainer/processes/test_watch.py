"""Signs of life, over a store that is a dictionary, with a clock that stands until it is moved."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.trainer.processes.texts import Texts
from trainer.processes import watch as module
from trainer.processes.stop import AgreedStop
from trainer.processes.timing import LOST_AFTER
from trainer.processes.watch import NEWS, Watch


class Ended(Exception):
    pass


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


@pytest.fixture
def store() -> Texts:
    return Texts()


@pytest.fixture
def three(store: Texts, later: Callable[[float], None]) -> list[Watch]:
    def end(sentence: str) -> None:
        raise Ended(sentence)

    names = [f"process {process} on gpu0{process}" for process in range(3)]
    return [Watch(store, process, names, end) for process in range(3)]


def talk(watches: list[Watch]) -> None:
    for watch in watches:
        watch.talk()


def test_nobody_is_missed_who_gives_signs(three: list[Watch], later: Callable[[float], None]) -> None:
    for _ in range(100):
        talk(three)
        later(1)


@pytest.mark.parametrize(("lost", "left"), [(1, (0, 2)), (2, (1, 0)), (0, (2, 1))])
def test_one_that_gives_none_is_named_in_all_others(
    three: list[Watch], later: Callable[[float], None], lost: int, left: tuple[int, int]
) -> None:
    talk(three)
    for _ in range(int(LOST_AFTER)):
        later(1)
        talk([three[process] for process in left])
    later(2)
    message = re.escape(f"process {lost} on gpu0{lost} is lost: no sign of life for 20 s")
    for process in sorted(left):
        with pytest.raises(Ended, match=message):
            three[process].talk()


def test_one_that_has_left_is_not_missed(three: list[Watch], later: Callable[[float], None]) -> None:
    talk(three)
    three[0].leave()
    three[2].leave()
    for _ in range(100):
        later(1)
        three[1].talk()


def test_one_that_fails_tells_why(three: list[Watch]) -> None:
    talk(three)
    three[2].fail("OSError: disk full")
    for watch in three[:2]:
        with pytest.raises(Ended, match="process 2 on gpu02 failed: OSError: disk full"):
            watch.talk()


def test_a_coordinator_that_does_not_answer_is_lost_with_its_host(
    three: list[Watch], later: Callable[[float], None]
) -> None:
    talk(three)
    later(LOST_AFTER + 1)
    with pytest.raises(Ended, match="process 0 on gpu00 is lost: its coordinator has not answered for 20 s"):
        three[1].require_answers()


def stops(store: Texts) -> list[AgreedStop]:
    return [AgreedStop(store, process, 2, "stop", first=0) for process in range(2)]


def hear(store: Texts, both: list[AgreedStop]) -> None:
    for _ in range(3):
        for stop in both:
            stop.hear(store.folder(NEWS))


def test_all_stop_after_the_step_that_is_the_furthest(store: Texts) -> None:
    """Process 1 has sent off steps up to 8, and may be waiting for process 0, which is asked to stop after step 3."""
    both = stops(store)
    assert [both[0].after(step, None) for step in (1, 2)] == [None, None]
    assert [both[1].after(step, None) for step in range(1, 8)] == [None] * 7
    hear(store, both)
    store.put(f"{NEWS}/stop", str(int(signal.SIGTERM)))
    hear(store, both)
    assert [both[0].after(step, signal.SIGTERM) for step in range(3, 8)] == [None] * 5
    assert both[0].after(8, signal.SIGTERM) is signal.SIGTERM
    assert both[1].after(8, None) is signal.SIGTERM


def test_nobody_stops_who_is_not_asked_to(store: Texts) -> None:
    both = stops(store)
    for step in range(1, 5):
        assert [stop.after(step, None) for stop in both] == [None, None]
        hear(store, both)
