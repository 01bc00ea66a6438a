"""Where a run of elements of an array lies in it, and what of it belongs into another part of that array.

Pure arithmetic on row-major arrays: a box is a slice per dim. Knows nothing of files or devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A part of an array: `start` and `shape`, an entry per dim each."""

    start: Shape
    shape: Shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def common(self, other: Box) -> Box | None:
        """What lies in both, if anything does."""
        starts = tuple(map(max, self.start, other.start))
        ends = map(min, self._end, other._end)
        shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts, shape) if all(length > 0 for length in shape) else None

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The slices that take this box out of an array that is `outer`."""
        places = [start - begin for start, begin in zip(self.start, outer.start, strict=True)]
        return tuple(slice(place, place + length) for place, length in zip(places, self.shape, strict=True))

    @property
    def _end(self) -> Shape:
        return tuple(start + length for start, length in zip(self.start, self.shape, strict=True))


def box_of(index: Sequence[slice], shape: Shape) -> Box:
    """The box that JAX calls `index`: slices without a step, of an array of this shape."""
    bounds = [part.indices(length) for part, length in zip(index, shape, strict=True)]
    return Box(tuple(start for start, _, _ in bounds), tuple(stop - start for start, stop, _ in bounds))


def run_of(box: Box, outer: Box) -> tuple[int, int]:
    """The first element of `outer` in row-major order that lies in `box`, and the one after the last."""
    first = last = 0
    for start, length, begin, size in zip(box.start, box.shape, outer.start, outer.shape, strict=True):
        first = first * size + start - begin
        last = last * size + start - begin + length - 1
    return first, last + 1


def boxes(shape: Shape, begin: int, end: int) -> Iterator[Box]:
    """The boxes that hold elements `begin` to `end` of an array in row-major order, in that order."""
    if begin >= end:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row  # whole rows
    if first > last:  # all in one row
        yield from _in_row(shape, last, begin, end)
        return
    if begin < first * row:
        yield from _in_row(shape, first - 1, begin, first * row)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    if last * row < end:
        yield from _in_row(shape, last, last * row, end)


def _in_row(shape: Shape, row: int, begin: int, end: int) -> Iterator[Box]:
    length = math.prod(shape[1:])
    for box in boxes(shape[1:], begin - row * length, end - row * length):
        yield Box((row, *box.start), (1, *box.shape))


@dataclass(frozen=True, eq=False)
class Target:
    """Host memory for a part of an array."""

    box: Box
    array: np.ndarray
    pages: np.ndarray
    """All of the array's memory, uint8."""


def scatter(elements: np.ndarray, piece: Box, begin: int, targets: Sequence[Target]) -> None:
    """Copies elements that lie in `piece` from the `begin`-th on to wherever they are wanted, in the target's dtype."""
    done = 0
    for part in boxes(piece.shape, begin, begin + elements.size):
        source = elements[done : done + part.size].reshape(part.shape)
        done += part.size
        there = Box(tuple(map(sum, zip(part.start, piece.start, strict=True))), part.shape)
        for target in targets:
            if (common := there.common(target.box)) is not None:
                target.array[common.within(target.box)] = source[common.within(there)]
