"""A schedule of one's own: what is written is read again, and what is wrong in a file is named with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sharding.pipeline.makers import make
from sharding.pipeline.schedule_file import read, write

NUMBERS = [("gpipe", 3, 1, 5), ("1f1b", 4, 1, 8), ("interleaved_1f1b", 3, 2, 7), ("1f1b", 1, 1, 1)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.csv"


def blank_slots(path: Path) -> None:
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *(line.rpartition(",")[0] + "," for line in lines)]) + "\n")


@pytest.mark.parametrize(("name", "stages", "chunks", "micro_batches"), NUMBERS)
def test_what_is_written_is_read_again(file: Path, name: str, stages: int, chunks: int, micro_batches: int) -> None:
    schedule = make(name, stages, chunks, micro_batches)
    write(schedule, file)
    again = read(file, stages, chunks, micro_batches)
    np.testing.assert_array_equal(again.units, schedule.units, strict=True)
    assert again.name == "mine"


@pytest.mark.parametrize(("name", "stages", "chunks", "micro_batches"), NUMBERS)
def test_blank_slots_are_allocated_as_ours_are(
    file: Path, name: str, stages: int, chunks: int, micro_batches: int
) -> None:
    schedule = make(name, stages, chunks, micro_batches)
    write(schedule, file)
    blank_slots(file)
    np.testing.assert_array_equal(read(file, stages, chunks, micro_batches).units, schedule.units)


def test_what_spreadsheets_and_people_write(file: Path) -> None:
    """A byte order mark, CRLF, lines in any order, spaces, empty lines."""
    file.write_bytes(
        b"\xef\xbb\xbftick,stage,what,chunk,micro_batch,slot\r\n"
        b"1, 0, backward, 0, 0, 0\r\n\r\n0,0, forward ,0,0,0\r\n1,0,forward,0,1,1\r\n2,0,backward,0,1,1\r\n"
    )
    units = read(file, 1, 1, 2).units
    none = [-1, -1, -1]
    assert units.tolist() == [[[[0, 0, 0], none]], [[[0, 1, 1], [0, 0, 0]]], [[none, [0, 1, 1]]]]


# Of 1f1b with 3 stages and 4 micro-batches, whose lines are:
#  1 tick,stage,...      2 0,0,forward,0,0,0    3 1,0,forward,0,1,1    4 1,1,forward,0,0,0     5 2,0,forward,0,2,2
#  6 2,1,forward,0,1,1   7 2,2,forward,0,0,0    8 2,2,backward,0,0,0   9 3,0,forward,0,3,3    10 3,1,forward,0,2,2
# 11 3,1,backward,0,0,0 ...
# Case -> (number of a line, what it is replaced by or None, what is said).
WRONG: dict[str, tuple[int, str | None, str]] = {
    "no header": (1, None, "line 1: the first line of a schedule is tick,stage,what,chunk,micro_batch,slot"),
    "too few entries": (5, "2,0,forward,0,2", "line 5: 5 entries; a line has 6: tick, stage, what"),
    "neither way": (5, "2,0,fwd,0,2,2", "line 5: what is 'fwd'; it is forward or backward"),
    "not a number": (5, "2,0,forward,zero,2,2", "line 5: chunk is 'zero'; it is a whole number"),
    "negative": (5, "-2,0,forward,0,2,2", "line 5: tick is '-2'; it is a whole number"),
    "huge": (5, f"2,0,forward,0,2,{10**12}", "line 5: slot is '1000000000000'"),
    "blank": (5, "2,,forward,0,2,2", "line 5: stage is ''; it is a whole number"),
    "one slot blank": (5, "2,0,forward,0,2,", "line 5: the slot is blank, but not in every line; fill in all, or none"),
    "two at one place": (6, "2,0,forward,0,3,3", "line 6: line 5 has a forward of stage 0 at tick 2 already; move one"),
    "far away": (5, "999999999,0,forward,0,2,2", "line 5: tick 999999999, where 24 units need 24 ticks at most"),
    "one more stage": (5, "2,3,forward,0,2,2", "line 5: it is a schedule of stages=4, .* to be one of stages=3"),
    "too early": (10, "3,1,forward,0,3,2", "line 10: tick 3, stage 1: .* is a deadlock"),
    "overwritten": (5, "2,0,forward,0,2,0", "line 5: tick 2, stage 0: .* overwrites slot 0"),
    "no backward": (11, None, "line 4: tick 1, stage 1: .* has no backward"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_line(file: Path, case: str) -> None:
    number, line, message = WRONG[case]
    write(make("1f1b", 3, 1, 4), file)
    lines = file.read_text().splitlines()
    lines[number - 1 : number] = [] if line is None else [line]
    file.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message) as refused:
        read(file, 3, 1, 4)
    assert str(refused.value).startswith(str(file))


def test_order_is_checked_before_blank_slots_are_allocated(file: Path) -> None:
    write(make("1f1b", 3, 1, 4), file)
    blank_slots(file)
    file.write_text(file.read_text().replace("0,0,forward,0,0,\n", ""))
    with pytest.raises(ValueError, match=r"line 3: tick 1, stage 1: .* waits for the forward .* which never runs"):
        read(file, 3, 1, 4)


@pytest.mark.parametrize("asked", [(2, 1, 4), (4, 1, 4), (3, 2, 4), (3, 1, 3), (3, 1, 8)])
def test_a_file_for_other_numbers_says_both(file: Path, asked: tuple[int, int, int]) -> None:
    write(make("1f1b", 3, 1, 4), file)
    message = "stages=3, chunks=1 and micro_batches=4, .* stages={}, chunks={} and micro_batches={}".format(*asked)
    with pytest.raises(ValueError, match=message):
        read(file, *asked)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.csv: there is no such file in"):
        read(tmp_path / "absent.csv", 1, 1, 1)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary.csv is not a CSV file"):
        read(tmp_path / "binary.csv", 1, 1, 1)
    (tmp_path / "header.csv").write_text("tick,stage,what,chunk,micro_batch,slot\n")
    with pytest.raises(ValueError, match=r"header.csv holds no units"):
        read(tmp_path / "header.csv", 1, 1, 1)
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty.csv, line 1: the first line"):
        read(tmp_path / "empty.csv", 1, 1, 1)


def test_a_schedule_of_ones_own_may_be_unlike_ours(file: Path) -> None:
    """Ticks in which nothing happens, and a backward that waits."""
    lines = ["tick,stage,what,chunk,micro_batch,slot", "0,0,forward,0,0,", "2,0,backward,0,0,", "2,0,forward,0,1,"]
    file.write_text("\n".join([*lines, "3,0,backward,0,1,"]))
    schedule = read(file, 1, 1, 2)
    assert (schedule.num_ticks, schedule.num_slots) == (4, 2)
