"""A pipeline schedule of one's own, as a CSV file with one line for each unit:

    tick,stage,what,chunk,micro_batch,slot
    0,0,forward,0,0,0

All numbers count from 0; `what` is forward or backward. Slots are allocated where the column is blank in every line.
Knows what a table is (`schedule`), and nothing of who executes it.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sharding.pipeline.schedule import IDLE, WHAT, Schedule, ScheduleError, with_slots

HEADER = ("tick", "stage", "what", "chunk", "micro_batch", "slot")
_MAX_DIGITS = 9  # what int32 holds


class _Line(NamedTuple):
    """One unit, and where in the file it stands."""

    number: int
    tick: int
    stage: int
    what: int
    chunk: int
    micro_batch: int
    slot: int
    """IDLE where it is blank."""


def read(path: str | Path, stages: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule in the file at `path`, checked, for that many stages, chunks of each, and micro-batches.

    Raises:
        ValueError: the file cannot be read, is for other numbers, or cannot be run; names the file and its line.
    """
    path = Path(path)
    lines = _parse(path)
    _check_numbers(path, lines, (stages, chunks, micro_batches))
    _check_places(path, lines)
    units = np.full((max(line.tick for line in lines) + 1, stages, 2, 3), IDLE, np.int32)
    allocate = _blank_slots(path, lines)
    for line in lines:
        # To be allocated only once the order is known to be valid: until then, each unit has a slot of its own.
        slot = line.chunk * micro_batches + line.micro_batch if allocate else line.slot
        units[line.tick, line.stage, line.what] = line.chunk, line.micro_batch, slot
    try:
        Schedule(path.stem, units).validate()
    except ScheduleError as error:
        number = next((line.number for line in lines if (line.tick, line.stage, line.what) == error.row), None)
        raise ValueError(f"{_place(path, number)}: {error}") from None
    return Schedule(path.stem, with_slots(units) if allocate else units)


def write(schedule: Schedule, path: str | Path) -> None:
    """The file that `read` reads as this schedule."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for tick, stage, what in np.argwhere(schedule.runs).tolist():
            writer.writerow([tick, stage, WHAT[what], *schedule.units[tick, stage, what].tolist()])


def _parse(path: Path) -> list[_Line]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, [entry.strip() for entry in row]) for row in reader if row]
    except FileNotFoundError:
        raise ValueError(
            f"{path}: there is no such file in {Path.cwd()}; say where it is, or name a schedule"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None
    header = ",".join(HEADER)
    if not rows or ",".join(rows[0][1]) != header:
        raise ValueError(f"{path}, line 1: the first line of a schedule is {header}")
    if len(rows) == 1:
        raise ValueError(f"{path} holds no units; it needs a line for each forward and each backward")
    return [_unit(path, number, row) for number, row in rows[1:]]


def _unit(path: Path, number: int, row: list[str]) -> _Line:
    if len(row) != len(HEADER):
        raise ValueError(f"{_place(path, number)}: {len(row)} entries; a line has {len(HEADER)}: {', '.join(HEADER)}")
    entries = dict(zip(HEADER, row, strict=True))
    if (what := entries.pop("what")) not in WHAT:
        raise ValueError(f"{_place(path, number)}: what is {what!r}; it is {' or '.join(WHAT)}")
    for name, entry in entries.items():
        if not (entry.isdecimal() and len(entry) <= _MAX_DIGITS) and (name, entry) != ("slot", ""):
            raise ValueError(f"{_place(path, number)}: {name} is {entry!r}; it is a whole number, counted from 0")
    slot = int(entries.pop("slot") or IDLE)
    tick, stage, chunk, micro_batch = map(int, entries.values())
    return _Line(number, tick, stage, WHAT.index(what), chunk, micro_batch, slot)


def _check_numbers(path: Path, lines: list[_Line], asked: tuple[int, int, int]) -> None:
    """That the file is for as many stages, chunks and micro-batches as asked for."""
    numbers = np.array([(line.stage, line.chunk, line.micro_batch) for line in lines]) + 1
    held = tuple(numbers.max(axis=0).tolist())
    if held != asked:
        beyond = np.any(numbers > asked, axis=1)
        raise ValueError(
            f"{_place(path, lines[beyond.argmax()].number if beyond.any() else None)}: it is a schedule of "
            f"{_numbers(held)}, and is to be one of {_numbers(asked)}; use a table for these, or change the mesh, "
            "pipeline.virtual_stages or the batch"
        )


def _check_places(path: Path, lines: list[_Line]) -> None:
    """That no stage does two things at once, and that the table is not mostly empty for a slip in one tick."""
    taken: dict[tuple[int, int, int], int] = {}
    for line in lines:
        if line.tick >= len(lines):
            raise ValueError(
                f"{_place(path, line.number)}: tick {line.tick}, where {len(lines)} units need {len(lines)} ticks at "
                f"most; count them from 0, without gaps"
            )
        first = taken.setdefault((line.tick, line.stage, line.what), line.number)
        if first != line.number:
            raise ValueError(
                f"{_place(path, line.number)}: line {first} has a {WHAT[line.what]} of stage {line.stage} at tick "
                f"{line.tick} already; move one of the two to another tick"
            )


def _blank_slots(path: Path, lines: list[_Line]) -> bool:
    """Whether the column is blank."""
    blank = [line.number for line in lines if line.slot == IDLE]
    if blank and len(blank) != len(lines):
        raise ValueError(f"{_place(path, blank[0])}: the slot is blank, but not in every line; fill in all, or none")
    return bool(blank)


def _place(path: Path, number: int | None) -> str:
    return f"{path}" if number is None else f"{path}, line {number}"


def _numbers(counts: tuple[int, ...]) -> str:
    return "stages={}, chunks={} and micro_batches={}".format(*counts)
