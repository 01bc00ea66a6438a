"""Where a process says it stands, and which one the others wait for."""

from __future__ import annotations

import pytest

from trainer.failures.board import behind
from trainer.failures.phases import BETWEEN, DATA, DEVICES, OTHERS, SAVE, STEP, Phases, Stand


def test_the_inner_phase_stands_for_the_outer() -> None:
    phases = Phases()
    assert phases.stand().phase == BETWEEN
    with phases(SAVE):
        with phases(DEVICES):
            assert phases.stand().phase == DEVICES
        assert phases.stand().phase == SAVE


def test_whatever_happens_moves() -> None:
    phases = Phases()
    moves = [phases.stand().moves]

    def note() -> None:
        moves.append(phases.stand().moves)

    with phases(STEP):
        note()
        with phases.span("update", "layers.mlp.up"):
            note()
            assert str(phases.stand()) == f"at step 0, {STEP} (update layers.mlp.up), perhaps compiling"
        note()
    note()
    phases.at(1)
    note()
    phases.moved()
    note()
    assert len(set(moves)) == len(moves)


def test_a_phase_that_fails_is_over() -> None:
    phases = Phases()
    with pytest.raises(KeyError), phases(SAVE):
        raise KeyError
    assert phases.stand().phase == BETWEEN


def test_only_the_first_of_a_kind_compiles() -> None:
    phases = Phases()
    with phases(STEP):
        assert phases.stand().is_first
    with phases(STEP):
        assert not phases.stand().is_first
    with phases(DEVICES):
        assert not phases.stand().is_first


@pytest.mark.parametrize(
    ("stands", "silent", "found"),
    [
        ([(7, DEVICES), (7, DATA), (7, DEVICES)], [], [1]),
        ([(9, DEVICES), (7, DATA), (8, OTHERS)], [], [1]),
        ([(9, DEVICES), (7, DEVICES), (9, DEVICES)], [], []),
        ([(9, DATA), (7, DEVICES)], [], []),
        ([(7, DEVICES), (7, OTHERS), (7, DEVICES)], [], []),
        ([(7, DEVICES), (7, DATA), (7, STEP)], [], [1, 2]),
        ([(7, DEVICES), (7, DATA), (9, STEP)], [2], [2]),
        ([(7, DEVICES)], [], []),
        ([(7, DATA)], [], [0]),
    ],
)
def test_who_is_waited_for(stands: list[tuple[int, str]], silent: list[int], found: list[int]) -> None:
    assert behind({n: Stand(step, phase, 0) for n, (step, phase) in enumerate(stands)}, silent) == found
