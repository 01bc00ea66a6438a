"""Schedules: each can be run and costs what its formula says; a table that cannot be run is refused at its row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.pipeline.makers import SCHEDULES, make
from sharding.pipeline.schedule import (
    BACKWARD,
    CHUNK,
    FORWARD,
    IDLE,
    MICRO_BATCH,
    SLOT,
    Phase,
    Schedule,
    ScheduleError,
    with_slots,
)

STAGES = range(1, 17)


def numbers(name: str, stages: int) -> list[tuple[int, int]]:
    """(chunks, micro-batches): fewer than stages, a multiple, one more or less, many."""
    counts = {1, 2, 3, 5, 17, 64, stages, stages + 1, 2 * stages - 1, 2 * stages, 3 * stages + 1, max(1, stages - 1)}
    chunks = range(1, 5) if name == "interleaved_1f1b" else [1]
    return [(chunk, micro_batches) for chunk in chunks for micro_batches in sorted(counts)]


def fault(units: np.ndarray) -> tuple[int, ...] | None:
    """The unit that stops the table when it is run; () where units are missing or no units; None where it trains."""
    if ((units == IDLE).any(axis=-1) != (units == IDLE).all(axis=-1)).any() or (units < IDLE).any():
        return ()
    stages = units.shape[1]
    chunks, micro_batches = units[..., CHUNK].max() + 1, units[..., MICRO_BATCH].max() + 1
    last = chunks * stages - 1
    ran: dict[tuple[int, int, int], int] = {}
    slots: list[dict[int, tuple[int, int]]] = [{} for _ in range(stages)]
    for tick, stage, what in np.argwhere(units[..., CHUNK] != IDLE).tolist():
        chunk, micro_batch, slot = units[tick, stage, what].tolist()
        virtual = chunk * stages + stage
        if (what, virtual, micro_batch) in ran or slot >= chunks * micro_batches:
            return tick, stage, what
        arrived = (what, virtual + (1 if what == BACKWARD else -1), micro_batch)
        if virtual != (last if what == BACKWARD else 0) and ran.get(arrived, tick) >= tick:
            return tick, stage, what
        if what == FORWARD:
            if slot in slots[stage]:
                return tick, stage, what
            slots[stage][slot] = virtual, micro_batch
        elif slots[stage].pop(slot, None) != (virtual, micro_batch):
            return tick, stage, what
        ran[what, virtual, micro_batch] = tick
    return None if len(ran) == 2 * chunks * stages * micro_batches else ()


def group_sizes(stages: int, chunks: int, micro_batches: int) -> list[int]:
    """Micro-batches that go through the chunks together: P or more, unless that would keep an eighth more chunks."""
    split = [np.array_split(np.arange(micro_batches), max(1, micro_batches // stages) + more) for more in (0, 1)]
    larger, smaller = (sorted(map(len, groups), reverse=True) for groups in split)
    begun = min(micro_batches, 2 * stages - 1)
    return larger if (chunks - 1) * larger[0] + begun <= 9 / 8 * (chunks * stages + stages - 1) else smaller


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_valid_and_cost_what_the_formulas_say(name: str, stages: int) -> None:
    for chunks, micro_batches in numbers(name, stages):
        schedule = make(name, stages, chunks, micro_batches)
        schedule.validate()
        held = schedule.num_stages, schedule.num_chunks, schedule.num_micro_batches
        assert held == (stages, chunks, micro_batches)
        assert schedule.runs.any(axis=(1, 2)).all(), "no tick is idle on all stages"
        groups = group_sizes(stages, chunks, micro_batches) if name == "interleaved_1f1b" else [micro_batches]
        # A group smaller than P holds places for P in each chunk; but nobody waits for those behind the very last.
        places = sum(max(size, stages) for size in groups) if chunks > 1 else micro_batches
        missing = max(stages - groups[-1], 0) if chunks > 1 else 0
        halves = chunks * places - missing + stages - 1
        for forward, backward in ((1, 2), (1, 1), (3, 0.5)):
            bubble = halves / (chunks * micro_batches) - 1
            np.testing.assert_allclose(schedule.bubble(forward, backward), bubble, rtol=1e-12)
        if min(groups) >= stages:
            np.testing.assert_allclose(schedule.bubble(), (stages - 1) / (chunks * micro_batches), rtol=1e-9)
        peak = {
            "gpipe": micro_batches,
            "1f1b": min(micro_batches, 2 * stages - 1),
            "interleaved_1f1b": (chunks - 1) * max(groups) + min(micro_batches, 2 * stages - 1),
        }
        if min(groups) >= stages or name != "interleaved_1f1b":
            assert schedule.peak_live == peak[name]
        assert schedule.peak_live <= max(peak[name], chunks * stages + stages - 1)
        assert schedule.num_slots == schedule.peak_live, "no slot more than is needed"


@pytest.mark.parametrize("name", SCHEDULES)
def test_running_them_trains(name: str) -> None:
    for stages in (1, 2, 5):
        for chunks, micro_batches in numbers(name, stages):
            assert fault(make(name, stages, chunks, micro_batches).units) is None, (stages, chunks, micro_batches)


def test_1f1b_as_in_the_books() -> None:
    """One forward and one backward share a tick; a freed slot is written again from the next tick on."""
    f = lambda micro_batch, slot: (0, micro_batch, slot)  # noqa: E731
    idle = (IDLE, IDLE, IDLE)
    expected = [
        [[f(0, 0), idle], [idle, idle]],
        [[f(1, 1), idle], [f(0, 0), f(0, 0)]],
        [[f(2, 2), f(0, 0)], [f(1, 0), f(1, 0)]],
        [[f(3, 0), f(1, 1)], [f(2, 0), f(2, 0)]],
        [[idle, f(2, 2)], [f(3, 0), f(3, 0)]],
        [[idle, f(3, 0)], [idle, idle]],
    ]
    np.testing.assert_array_equal(make("1f1b", 2, 1, 4).units, expected)
    np.testing.assert_array_equal(make("1f1b", 2, 1, 4).live(), [[1, 0], [2, 1], [3, 1], [3, 1], [2, 1], [1, 0]])


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(4, 2, 9), (4, 2, 6), (8, 3, 17), (12, 2, 128)])
def test_a_rest_makes_groups_larger_and_no_bubble(stages: int, chunks: int, micro_batches: int) -> None:
    schedule = make("interleaved_1f1b", stages, chunks, micro_batches)
    assert schedule.bubble() == pytest.approx((stages - 1) / (chunks * micro_batches))
    assert schedule.num_slots <= chunks * stages + stages - 1 + chunks, "some more chunks, not a group more"


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(4, 2, 8), (4, 3, 12), (3, 2, 2), (1, 4, 3)])
def test_interleaving_takes_groups_through_all_chunks(stages: int, chunks: int, micro_batches: int) -> None:
    schedule = make("interleaved_1f1b", stages, chunks, micro_batches)
    groups = -(-micro_batches // stages)
    turns = np.arange(groups * stages * chunks)
    chunk, micro_batch = turns // stages % chunks, turns // (stages * chunks) * stages + turns % stages
    real = micro_batch < micro_batches
    for stage in range(stages):
        forward = schedule.units[(stage + turns)[real], stage, FORWARD, :SLOT]
        np.testing.assert_array_equal(forward, np.stack([chunk, micro_batch], 1)[real])
        ticks = chunks * stages - 1 + stages - 1 - stage + turns
        backward = schedule.units[ticks[real], stage, BACKWARD, :SLOT]
        np.testing.assert_array_equal(backward, np.stack([chunks - 1 - chunk, micro_batch], 1)[real])


@pytest.mark.parametrize("stages", [1, 3, 8])
def test_interleaved_with_one_chunk_is_1f1b(stages: int) -> None:
    for micro_batches in (1, 4, 17):
        units = [make(name, stages, 1, micro_batches).units for name in ("1f1b", "interleaved_1f1b")]
        np.testing.assert_array_equal(*units)


def test_phases() -> None:
    assert make("1f1b", 4, 1, 8).phases == [
        Phase(0, 3, True, False),
        Phase(3, 11, True, True),
        Phase(11, 14, False, True),
    ]
    assert make("gpipe", 4, 1, 8).phases == [Phase(0, 11, True, False), Phase(11, 22, False, True)]
    assert make("1f1b", 1, 1, 5).phases == [Phase(0, 5, True, True)]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 3, 7])
def test_phases_cover_all_ticks_and_leave_no_unit_out(name: str, stages: int) -> None:
    for chunks, micro_batches in numbers(name, stages):
        schedule = make(name, stages, chunks, micro_batches)
        starts, stops = [p.start for p in schedule.phases], [p.stop for p in schedule.phases]
        assert [*starts, schedule.num_ticks] == [0, *stops]
        for phase in schedule.phases:
            runs = schedule.runs[phase.start : phase.stop].any(axis=(0, 1)).tolist()
            assert runs == [phase.forward, phase.backward]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1", 4, 1, 8), "there is no schedule '1f1'; did you mean '1f1b'?"),
        (("interleaved", 4, 1, 8), "did you mean 'interleaved_1f1b'?"),
        (("zzz", 4, 1, 8), "there are gpipe, 1f1b, interleaved_1f1b"),
        (("1f1b", 4, 2, 8), "1f1b has one chunk .* not 2; use interleaved_1f1b, or 1f1b with 1"),
        (("gpipe", 4, 3, 8), "gpipe has one chunk .* not 3; use interleaved_1f1b, or gpipe with 1"),
        (("gpipe", 0, 1, 8), "0 stages; it needs 1 or more"),
        (("gpipe", 4, 0, 8), "0 chunks; it needs 1 or more"),
        (("gpipe", 4, 1, 0), "0 micro-batches; it needs 1 or more"),
    ],
)
def test_what_cannot_be_made_names_what_can(arguments: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        make(*arguments)


def swap(units: np.ndarray, a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    units[a], units[b] = units[b].copy(), units[a].copy()


def change(place: tuple[int, ...], value: int | list[int]) -> Callable[[np.ndarray], None]:
    def corrupt(units: np.ndarray) -> None:
        units[place] = value

    return corrupt


# Of 1f1b with 3 stages and 6 micro-batches: forward of i on s at tick i + s, backward at i + 4 - s.
CORRUPTED: dict[str, tuple[Callable[[np.ndarray], None], tuple[int, int, int], str]] = {
    "swapped": (
        lambda units: swap(units, (3, 1, FORWARD), (4, 1, FORWARD)),
        (3, 1, FORWARD),
        "tick 3, stage 1: the forward of chunk 0 for micro-batch 3 is a deadlock: it waits for the forward of chunk 0 "
        "for micro-batch 3 on stage 0, which runs at tick 3; run it at tick 4 or later",
    ),
    "backward too early": (
        lambda units: swap(units, (6, 0, BACKWARD), (5, 0, BACKWARD)),
        (5, 0, BACKWARD),
        "tick 5, stage 0: the backward of chunk 0 for micro-batch 2 is a deadlock: it waits for the backward of chunk "
        "0 for micro-batch 2 on stage 1, which runs at tick 5; run it at tick 6 or later",
    ),
    "backward before its forward": (
        lambda units: swap(units, (3, 2, BACKWARD), (4, 2, BACKWARD)),
        (3, 2, BACKWARD),
        "tick 3, stage 2: the backward of chunk 0 for micro-batch 2 is a deadlock: it waits for the forward of chunk 0 "
        "for micro-batch 2 on stage 2, which runs at tick 4; run it at tick 4 or later",
    ),
    "forward missing": (
        change((3, 1, FORWARD), IDLE),
        (4, 2, FORWARD),
        "tick 4, stage 2: the forward of chunk 0 for micro-batch 2 waits for the forward of chunk 0 for micro-batch 2 "
        "on stage 1, which never runs; add it at an earlier tick",
    ),
    "backward missing": (
        change((5, 1, BACKWARD), IDLE),
        (3, 1, FORWARD),
        "tick 3, stage 1: the forward of chunk 0 for micro-batch 2 has no backward; add one",
    ),
    "run twice": (
        change((4, 1, FORWARD, MICRO_BATCH), 2),
        (4, 1, FORWARD),
        "tick 4, stage 1: the forward of chunk 0 for micro-batch 2 ran at tick 3 already; leave one of the two out",
    ),
    "slot overwritten": (
        change((2, 0, FORWARD, SLOT), 0),
        (2, 0, FORWARD),
        "tick 2, stage 0: the forward of chunk 0 for micro-batch 2 overwrites slot 0, which keeps the forward of chunk "
        "0 for micro-batch 0 until its backward; use another slot, or this one from tick 5 on",
    ),
    "slot of another": (
        change((4, 0, BACKWARD, SLOT), 3),
        (4, 0, BACKWARD),
        "tick 4, stage 0: the backward of chunk 0 for micro-batch 0 reads slot 3; its forward wrote slot 0",
    ),
    "slot out of range": (
        change((4, 0, FORWARD, SLOT), 1000),
        (4, 0, FORWARD),
        "tick 4, stage 0: the forward of chunk 0 for micro-batch 4 is in slot 1000; use 0 to 5",
    ),
    "half a unit": (
        change((4, 0, FORWARD, CHUNK), IDLE),
        (4, 0, FORWARD),
        r"tick 4, stage 0: the forward has \(chunk, micro-batch, slot\) \(-1, 4, 4\); each is 0 or more, or all are -1",
    ),
    "below idle": (
        change((4, 0, FORWARD), [-2, -2, -2]),
        (4, 0, FORWARD),
        "tick 4, stage 0: the forward has",
    ),
}


@pytest.mark.parametrize("case", CORRUPTED)
def test_a_corrupted_table_is_refused_at_its_row(case: str) -> None:
    corrupt, row, message = CORRUPTED[case]
    schedule = make("1f1b", 3, 1, 6)
    corrupt(schedule.units)
    with pytest.raises(ScheduleError, match=message) as refused:
        schedule.validate()
    assert refused.value.row == row


def test_the_first_fault_in_the_order_of_ticks_is_named() -> None:
    schedule = make("1f1b", 3, 1, 6)
    for case in ("slot of another", "slot overwritten", "run twice"):
        CORRUPTED[case][0](schedule.units)
    with pytest.raises(ScheduleError) as refused:
        schedule.validate()
    assert refused.value.row == CORRUPTED["slot overwritten"][1]


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (np.zeros((4, 2, 3), np.int32), r"int32 \[ticks, stages, 2, 3\], and this is int32 \[4, 2, 3\]"),
        (np.zeros((4, 2, 2, 3)), r"and this is float64 \[4, 2, 2, 3\]"),
        (np.full((4, 2, 2, 3), IDLE, np.int32), "idle throughout"),
        (np.full((0, 2, 2, 3), IDLE, np.int32), "idle throughout"),
        (make("1f1b", 1, 1, 5).units[[0, 1, 3, 4]], "micro-batches up to 4 are 5 forwards .* and there are 4"),
        (
            np.insert(make("1f1b", 1, 1, 4).units, 2, IDLE, axis=0)[[0, 1, 2, 2, 4]],
            "micro-batch 2 on stage 0 never runs",
        ),
    ],
)
def test_what_is_no_table_is_refused(units: np.ndarray, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule("mine", units).validate()


def test_a_stage_may_wait() -> None:
    """Idle ticks, also on all stages, cost time and are no fault."""
    units = make("1f1b", 3, 1, 6).units
    Schedule("slow", np.insert(units, [0, 3, 7], IDLE, axis=0)).validate()


@st.composite
def mutated(draw: st.DrawFn) -> np.ndarray:
    """A schedule with a few entries changed or units exchanged: mostly wrong, and sometimes as good as before."""
    name = draw(st.sampled_from(list(SCHEDULES)))
    chunks = draw(st.integers(1, 3)) if name == "interleaved_1f1b" else 1
    schedule = make(name, draw(st.integers(1, 3)), chunks, draw(st.integers(1, 5)))
    units = schedule.units
    places = st.tuples(*(st.integers(0, size - 1) for size in units.shape[:3]))
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()):
            swap(units, draw(places), draw(places))
        else:
            column = draw(st.integers(0, 2))
            units[(*draw(places), column)] = draw(st.integers(IDLE, schedule.num_chunks * schedule.num_micro_batches))
    return units


@settings(deadline=None, max_examples=300)
@given(mutated())
def test_what_is_refused_is_what_could_not_be_run(units: np.ndarray) -> None:
    row, schedule = fault(units), Schedule("mutated", units)
    if row is None:
        schedule.validate()
        return
    with pytest.raises(ScheduleError) as refused:
        schedule.validate()
    if row and refused.value.row and "has no backward" not in str(refused.value):
        assert refused.value.row == row


@settings(deadline=None, max_examples=100)
@given(mutated())
def test_slots_are_as_few_as_can_be_in_any_order(units: np.ndarray) -> None:
    runs = units[..., CHUNK] != IDLE
    chunks, micro_batches = units[..., CHUNK].max() + 1, units[..., MICRO_BATCH].max() + 1
    own = np.where(runs, units[..., CHUNK] * micro_batches + units[..., MICRO_BATCH], IDLE)
    if chunks and fault(np.concatenate([units[..., :SLOT], own[..., None]], axis=-1)) is None:
        schedule = Schedule("mutated", with_slots(units))
        assert fault(schedule.units) is None
        assert schedule.num_slots == schedule.peak_live
