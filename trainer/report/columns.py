"""The numbers of a metrics.jsonl as columns, however long it is: a million lines in seconds.

A line that a kill cut, or that is no record, is passed over. What a later line takes back, as it goes on from an
earlier step, is left out: so no step is told twice. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from trainer.lines import record_of

Record = dict[str, Any]

MOST_STEPS = 2**53 - 1
"""More is not told exactly by a float, and was trained by nobody."""

_CHUNK = 1 << 22
"""Bytes that are parsed at a time."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Records, in the order in which they were written."""

    step: np.ndarray
    """int64 [n]; none is below the one before."""
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Name -> float64 [n], nan where there is no finite number."""

    def __len__(self) -> int:
        return len(self.step)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column, all nan where there is none."""
        return self.numbers.get(name, np.full(len(self), np.nan))

    def last(self, name: str) -> float | None:
        """The last number there is."""
        found = self[name][np.isfinite(self[name])]
        return float(found[-1]) if len(found) else None

    def where(self, which: np.ndarray) -> Columns:
        """Some of the records: bool [n]."""
        return Columns(self.step[which], {name: column[which] for name, column in self.numbers.items()})


def read_columns(path: Path, kinds: Sequence[str]) -> dict[str, Columns]:
    """The records of each kind: those that have a field of that name. A file that is not there has none."""
    tables = {kind: _Table() for kind in kinds}
    place = 0
    for records in _chunks(path) if path.exists() else ():
        for kind, table in tables.items():
            chosen = [k for k, record in enumerate(records) if kind in record]
            table.add([records[k] for k in chosen], place + np.array(chosen, np.int64))
        place += len(records)
    return _not_taken_back({kind: table.columns() for kind, table in tables.items()})


class _Table:
    """Records, and the places in the file that they have, a chunk after the other."""

    def __init__(self) -> None:
        self._steps: list[np.ndarray] = [np.zeros(0, np.int64)]
        self._places: list[np.ndarray] = [np.zeros(0, np.int64)]
        self._numbers: list[dict[str, np.ndarray]] = [{}]

    def add(self, records: Sequence[Record], places: np.ndarray) -> None:
        """Records of one form are taken together: the form of a file's records hardly ever changes."""
        forms: dict[tuple[str, ...], list[int]] = {}
        for k, record in enumerate(records):
            forms.setdefault(tuple(record), []).append(k)
        for names, chosen in forms.items():
            numbers = _numbers(names, [records[k] for k in chosen])
            self._steps.append(numbers.pop("step").astype(np.int64))
            self._places.append(places[chosen])
            self._numbers.append(numbers)

    def columns(self) -> tuple[Columns, np.ndarray]:
        """All of them as they stand in the file, and their places: int64 [n]."""
        places = np.concatenate(self._places)
        order = np.argsort(places, kind="stable")
        names = dict.fromkeys(name for numbers in self._numbers for name in numbers)
        sizes = [len(steps) for steps in self._steps]
        numbers = {
            name: np.concatenate(
                [part.get(name, np.full(size, np.nan)) for part, size in zip(self._numbers, sizes, strict=True)]
            )[order]
            for name in names
        }
        return Columns(np.concatenate(self._steps)[order], numbers), places[order]


def _not_taken_back(found: Mapping[str, tuple[Columns, np.ndarray]]) -> dict[str, Columns]:
    """A record is taken back by a later one of a smaller step, and by a later one of its kind of the same step."""
    places = np.concatenate([places for _, places in found.values()])
    steps = np.concatenate([columns.step for columns, _ in found.values()])
    order = np.argsort(places, kind="stable")
    places, least = places[order], _least_of_later(steps[order])
    kept = {}
    for kind, (columns, own) in found.items():
        later = least[np.searchsorted(places, own)]
        kept[kind] = columns.where((columns.step <= later) & (columns.step < _least_of_later(columns.step)))
    return kept


def _least_of_later(step: np.ndarray) -> np.ndarray:
    """For each, the smallest step of those that come after it."""
    following = np.append(step[1:], np.iinfo(np.int64).max)[: len(step)]
    return np.minimum.accumulate(following[::-1])[::-1]


def _chunks(path: Path) -> Iterator[list[Record]]:
    with path.open("rb") as file:
        while lines := file.readlines(_CHUNK):
            try:
                records = json.loads(b"[" + b",".join(lines) + b"]")
            except (ValueError, RecursionError):
                records = [record_of(line) for line in lines]
            yield [record for record in records if _has_step(record)]


def _has_step(record: Any) -> bool:
    return isinstance(record, dict) and type(record.get("step")) is int and 0 <= record["step"] <= MOST_STEPS


def _numbers(names: tuple[str, ...], records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Of records that all have these names."""
    pick = itemgetter(*names) if len(names) > 1 else lambda record: (record[names[0]],)
    rows = list(map(pick, records))
    try:
        table = np.array(rows, np.float64)
    except (ValueError, TypeError, OverflowError):  # texts, say, or lists
        table = np.array([[_number(value) for value in row] for row in rows])
    table[~np.isfinite(table)] = np.nan
    return dict(zip(names, np.ascontiguousarray(table.T), strict=True))


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else np.nan
    except OverflowError:
        return np.nan
