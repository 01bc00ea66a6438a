"""Which parts of the parameters travel and are updated at a time. Pure arithmetic.

A bucket is a part of one parameter, the same on each device: so that all of them give and take it in one small program.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainer.offload.buffers import round_up


@dataclass(frozen=True)
class Bucket:
    """Of each device's shard of parameter `name`, as a matrix [first dim, all others]: some rows, and of these some
    columns. Either it is one row, or whole rows, and so it lies in one piece."""

    name: str
    row: int
    rows: int
    column: int
    columns: int
    width: int
    """Columns that the matrix has."""

    @property
    def start(self) -> int:
        """Elements of the shard before the first of these."""
        return self.row * self.width + self.column

    @property
    def size(self) -> int:
        """Elements."""
        return self.rows * self.columns


UNIT = 2048
"""Elements that are whole pages in any dtype that is computed with, and in float32."""


def cut(shards: Mapping[str, Sequence[int]], most: int, by_row: Collection[str] = ()) -> Iterator[Bucket]:
    """All elements of the parameters, by name the shape of a device's shard, in buckets of at most `most` elements.

    Those of one parameter come one after another, from its first element to its last. Those of `by_row` are in one row
    and begin at a multiple of `UNIT` in it; they may have up to as many elements more.
    """
    for name, shape in shards.items():
        height, width = shape[0], math.prod(shape[1:])
        if width > most or name in by_row:
            columns = _even(width, most)
            if name in by_row:
                columns = round_up(columns, UNIT)
            for row in range(height):
                for column in range(0, width, columns):
                    yield Bucket(name, row, 1, column, min(columns, width - column), width)
        else:
            rows = _even(height, most // width)
            for row in range(0, height, rows):
                yield Bucket(name, row, min(rows, height - row), 0, width, width)


def _even(whole: int, most: int) -> int:
    """The size of parts that are as equal as can be, none above `most`."""
    parts = -(-whole // most)
    return -(-whole // parts)
