"""A line chart: numbers over steps or hours, as one small picture however many they are.

More points than there is room for are thinned out to the mean of each stretch, with its least and its largest as a band
behind: nothing is smoothed, and nothing that stands out is left out. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.page.axis import Axis
from trainer.page.numbers import short
from trainer.picture import Area, Label, Line, Picture, Rect, Shape

LEFT, RIGHT, TOP, BOTTOM = 50, 64, 40, 40  # pixels around what is drawn, at least
PER_POINT = 2
"""Pixels along x that a point takes, before points are thinned out."""
LETTER, BOLD_LETTER, DIGIT, BOLD_DIGIT = 6.4, 7.6, 7.7, 8.4  # pixels: words in the mean, numbers at most
LINE_HEIGHT, TICK = 15, 90
BESIDE = 8
"""Pixels between a number and what it stands beside."""
STROKE, DOT, MARK = 1.6, 5, 7
MOST_DOTS = 100


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of one kind, in the order of x: float [n] each, y not finite where there is no number."""

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray
    dots: bool = False
    """Not joined by a line, as long as they are few."""
    mute: bool = False
    """The last number is not written beside the end."""


@dataclass(frozen=True, eq=False)
class Marks:
    """What happened at some places along x: float [n]."""

    name: str
    colour: str
    x: np.ndarray


@dataclass(frozen=True)
class Thin:
    """At most as many points as there is room for: x, and the mean, least and largest of each; float [n] each."""

    x: np.ndarray
    mean: np.ndarray
    least: np.ndarray
    largest: np.ndarray

    def parts(self) -> Iterator[slice]:
        """The stretches between gaps."""
        there = np.concatenate([[False], np.isfinite(self.mean), [False]])
        edges = np.flatnonzero(there[1:] != there[:-1])
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            yield slice(int(first), int(end))


def thin(x: np.ndarray, y: np.ndarray, room: int) -> Thin:
    """Points (x ascending) as at most `room` stretches of equal length; what is not finite counts in no mean.

    A stretch of which nothing is finite is a gap; one without any point is none.
    """
    x, y = np.asarray(x, float), np.where(np.isfinite(y), y, np.nan)
    if len(x) <= room:
        return Thin(x, y, y, y)
    stretch = np.minimum((room * (x - x[0]) / (x[-1] - x[0] or 1)).astype(int), room - 1)
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    there = np.isfinite(y)
    count = np.add.reduceat(there, starts, dtype=int)
    none = count == 0
    total = np.add.reduceat(np.where(there, y, 0), starts)
    mean = np.where(none, np.nan, total / np.maximum(count, 1))
    least = np.where(none, np.nan, np.minimum.reduceat(np.where(there, y, np.inf), starts))
    largest = np.where(none, np.nan, np.maximum.reduceat(np.where(there, y, -np.inf), starts))
    middle = np.add.reduceat(x, starts) / np.diff(starts, append=len(x))
    middle[[0, -1]] = x[[0, -1]]  # the ends stay where they are
    return Thin(middle, mean, least, largest)


@dataclass(frozen=True)
class Frame:
    """Where a chart's numbers lie, in pixels."""

    width: int
    height: int
    x: Axis
    y: Axis
    left: int
    top: int
    right: int
    """All three from the left or the top."""

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM

    def across(self, x: np.ndarray) -> np.ndarray:
        return np.round(self.left + self.x.place(x) * (self.right - self.left), 1)

    def down(self, y: np.ndarray) -> np.ndarray:
        return np.round(self.bottom - self.y.place(y) * (self.bottom - self.top), 1)


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    width: int = 492,
    height: int = 210,
    marks: Sequence[Marks] = (),
    x_name: str = "step",
    x_end: float | None = None,
    from_zero: bool = False,
    write: Callable[[float], str] = short,
) -> Picture:
    """The curves in one frame, under their names.

    Args:
        x_end: how far the x axis goes at least.
        from_zero: whether the y axis has to show 0.
        write: how a number on the y axis is written.
    """
    y_axis = Axis.around(np.concatenate([[np.nan], *(curve.y for curve in curves)]), from_zero=from_zero)
    heading = title + (" (logarithmic)" if y_axis.logarithmic else "")
    keys = _keys(heading, curves, marks, width)
    ends = [happened.x for happened in marks] + ([] if x_end is None else [np.array([x_end])])
    frame = Frame(
        width,
        height + LINE_HEIGHT * (len(keys) - 1),
        Axis.around(np.concatenate([[np.nan], *ends, *(curve.x for curve in curves)]), snug=True),
        y_axis,
        left=max(LEFT, round(BESIDE + DIGIT * max(map(len, _written(y_axis.ticks(), write)), default=0))),
        top=TOP + LINE_HEIGHT * (len(keys) - 1),
        right=width - max(RIGHT, round(BESIDE + BOLD_DIGIT * max(map(len, map(write, _ends(curves))), default=0))),
    )
    thinned = [thin(curve.x, curve.y, (frame.right - frame.left) // PER_POINT) for curve in curves]
    shapes = [*_grid(frame, x_name, write)]
    for happened in marks:
        shapes += _marks(frame, happened)
    for curve, points in zip(curves, thinned, strict=True):
        shapes += _curve(frame, curve, points)
    shapes += _last(frame, curves, write)
    shapes += _heading(frame, heading, keys)
    if not any(np.isfinite(curve.y).any() for curve in curves):
        middle = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2
        shapes.append(Label("faint", *middle, "no number yet", centred=True))
    return Picture(title, width, frame.height, shapes)


def _written(ticks: Sequence[float], write: Callable[[float], str]) -> list[str]:
    """Those of an axis, with as many digits as it takes to tell them apart."""
    texts = [write(tick) for tick in ticks]
    for digits in range(5, 17):
        if len(set(texts)) == len(texts):
            break
        texts = [f"{tick:,.{digits}g}" for tick in ticks]
    return texts


def _grid(frame: Frame, x_name: str, write: Callable[[float], str]) -> Iterator[Shape]:
    ticks = frame.y.ticks()
    for tick, text in zip(ticks, _written(ticks, write), strict=True):
        y = float(frame.down(np.array(tick)))
        yield Rect("edge", frame.left, y - 0.5, frame.right - frame.left, 1)
        yield Label("faint", frame.left - BESIDE, y + 4, text, right=True)
    for tick in frame.x.ticks((frame.right - frame.left) // TICK):
        x = float(frame.across(np.array(tick)))
        yield Rect("edge", x - 0.5, frame.bottom, 1, 4)
        yield Label("faint", x, frame.bottom + 18, f"{tick:,.10g}", centred=True)
    yield Rect("faint", frame.left, frame.bottom - 0.5, frame.right - frame.left, 1)
    yield Label("faint", (frame.left + frame.right) / 2, frame.height - 6, x_name, centred=True)


def _marks(frame: Frame, marks: Marks) -> Iterator[Shape]:
    """A hair and a pennant for each; those that would cover each other are one."""
    for x in np.unique(np.round(frame.across(marks.x) / 2) * 2).tolist():
        yield Rect(marks.colour, x - 0.5, frame.top, 1, frame.bottom - frame.top)
        yield Area(marks.colour, [(x, frame.top), (x + MARK, frame.top + MARK / 2), (x, frame.top + MARK)])


def _curve(frame: Frame, curve: Curve, points: Thin) -> Iterator[Shape]:
    x, mean = frame.across(points.x), frame.down(points.mean)
    top, under = frame.down(points.largest), frame.down(points.least)
    for part in points.parts():
        if not np.array_equal(top[part], under[part]):
            band = [*_pairs(x[part], top[part]), *_pairs(x[part][::-1], under[part][::-1])]
            yield Area(curve.colour, band)
        dots = curve.dots and len(points.x) <= MOST_DOTS
        if dots or part.stop - part.start == 1:
            for left, y in _pairs(x[part], mean[part]):
                yield Rect(curve.colour, left - DOT / 2, y - DOT / 2, DOT, DOT)
        if not dots:
            yield Line(curve.colour, _pairs(x[part], mean[part]), STROKE)


def _last(frame: Frame, curves: Sequence[Curve], write: Callable[[float], str]) -> Iterator[Shape]:
    """The last number of each curve beside its end, one below the other where they meet."""
    free = -np.inf
    for y, number in sorted((float(frame.down(np.array(number))), number) for number in _ends(curves)):
        free = max(y + 4, free)
        yield Label("ink", frame.right + BESIDE - 2, free, write(number), bold=True)
        free += LINE_HEIGHT


def _ends(curves: Sequence[Curve]) -> list[float]:
    """The last number of each curve that is not mute."""
    there = [curve.y[np.isfinite(curve.y)] for curve in curves if not curve.mute]
    return [float(numbers[-1]) for numbers in there if len(numbers)]


def _keys(title: str, curves: Sequence[Curve], marks: Sequence[Marks], width: int) -> list[list[tuple[str, str]]]:
    """Lines of (name, colour), where there is more than one thing to tell apart; the first stands beside the title."""
    keys = [(curve.name, curve.colour) for curve in curves if len(curve.x)]
    keys += [(f"{happened.name} ({len(happened.x):,})", happened.colour) for happened in marks]
    lines: list[list[tuple[str, str]]] = [[]]
    room = width - BOLD_LETTER * len(title) - 2 * BESIDE
    if sum(map(_key_width, keys)) > room:
        lines, room = [[], []], width - BESIDE
    for key in keys if len(keys) > 1 else []:
        if lines[-1] and sum(map(_key_width, [*lines[-1], key])) > room:
            lines.append([])
        lines[-1].append(key)
    return lines if lines[-1] else lines[:1]


def _key_width(key: tuple[str, str]) -> float:
    return LETTER * len(key[0]) + 32


def _heading(frame: Frame, title: str, keys: Sequence[Sequence[tuple[str, str]]]) -> Iterator[Shape]:
    """The title, and the key on its right, or below it where there is more to it."""
    yield Label("ink", 2, 16, title, bold=True)
    for line, names in enumerate(keys):
        x, y = frame.width - float(BESIDE), 16 + LINE_HEIGHT * line
        for name, colour in reversed(names):
            x -= _key_width((name, colour)) - 24
            yield Label("faint", x, y, name)
            yield Rect(colour, x - 15, y - 10, 10, 10)
            x -= 24


def _pairs(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))
