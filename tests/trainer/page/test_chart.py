"""A chart shows every number that stands out, however many there are, and takes no more room for it."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from trainer.page.axis import Axis
from trainer.page.chart import Curve, Marks, chart, thin
from trainer.page.numbers import short
from trainer.picture import Area, Label, Line, Picture, Rect

BLUE, RED = "#0000ff", "#ff0000"


def drawn(y: np.ndarray, **options: object) -> Picture:
    return chart("a", [Curve("a", BLUE, np.arange(len(y)), y)], **options)  # type: ignore[arg-type]


def words(picture: Picture) -> list[str]:
    return [shape.text for shape in picture.shapes if isinstance(shape, Label)]


def test_thinning_out_keeps_the_mean_and_what_stands_out() -> None:
    y = np.random.default_rng(0).normal(size=10_000)
    y[3_333], y[7_777] = 100, -100
    points = thin(np.arange(10_000), y, 250)
    assert len(points.x) == 250
    assert (points.largest.max(), points.least.min()) == (100, -100)
    np.testing.assert_allclose(points.mean.mean(), y.mean(), atol=1e-3)
    assert (points.least <= points.mean).all()
    assert (points.mean <= points.largest).all()
    assert (points.x[0], points.x[-1]) == (0, 9_999)


def test_few_points_stay_as_they_are() -> None:
    x, y = np.array([1, 10, 20]), np.array([3.0, np.nan, 1.0])
    points = thin(x, y, 250)
    np.testing.assert_array_equal(points.x, x)
    for numbers in (points.mean, points.least, points.largest):
        np.testing.assert_array_equal(numbers, y)


def test_what_is_not_finite_is_a_gap_only_where_all_of_a_place_is() -> None:
    y = np.ones(1000)
    y[100:200] = np.nan
    y[500] = np.inf
    points = thin(np.arange(1000), y, 100)
    assert list(points.parts()) == [slice(0, 10), slice(20, 100)]
    np.testing.assert_array_equal(points.mean[20:], 1)


@pytest.mark.parametrize("count", [10_000, 1_000_000])
def test_a_long_curve_is_a_small_picture(count: int) -> None:
    y = np.random.default_rng(0).normal(size=count)
    assert len(drawn(y, width=1016).svg()) < 25_000


def test_a_spike_is_in_the_band_and_the_last_number_is_written() -> None:
    y = np.full(100_000, 2.0)
    y[50_000], y[-1] = 5, 2.125
    picture = drawn(y)
    (band,) = (shape for shape in picture.shapes if isinstance(shape, Area))
    (line,) = (shape for shape in picture.shapes if isinstance(shape, Line))
    assert min(y for _, y in band.corners) < min(y for _, y in line.points) - 50
    assert "2.125" in words(picture)


@pytest.mark.parametrize("y", [[], [np.nan, np.nan]])
def test_a_chart_without_numbers_says_so(y: list[float]) -> None:
    assert "no number yet" in words(drawn(np.array(y)))


@pytest.mark.parametrize("y", [[1.0], [0.0, 0.0], [-1e-30, 1e30], [1e300, 1e-300], [-5, -5], [3.0, np.inf]])
def test_odd_numbers_are_drawn_within_the_frame(y: list[float]) -> None:
    picture = drawn(np.array(y), width=400, height=200)
    for shape in picture.shapes:
        if isinstance(shape, Line):
            assert all(0 <= x <= 400 and 0 <= y <= 200 for x, y in shape.points)
    assert "nan" not in picture.svg()
    assert "inf" not in picture.svg()


def test_marks_that_would_cover_each_other_are_one_and_all_are_counted() -> None:
    marks = [Marks("restart", RED, np.array([500.0, 500, 501, 900]))]
    picture = chart("a", [Curve("a", BLUE, np.arange(1000), np.ones(1000))], marks=marks)
    assert len([shape for shape in picture.shapes if isinstance(shape, Rect) and shape.colour == RED]) == 3  # and a key
    assert "restart (4)" in words(picture)


DIGIT = {False: 7.64, True: 8.36}
"""Pixels of a digit of DejaVu Sans, the widest of the fonts, plain or bold."""


@pytest.mark.parametrize(
    "y", [[0.001234] * 9, [1.05e-3, 1.06e-3], [0, -0.001234], [-1.234e-5, 2e-8], [0.98765, 0.98775], [1234567, 1234568]]
)
def test_numbers_beside_the_axis_are_whole_and_differ(y: list[float]) -> None:
    picture = drawn(np.array(y))
    labels = [shape for shape in picture.shapes if isinstance(shape, Label) and re.match(r"[-\d]", shape.text)]
    for label in labels:
        width = DIGIT[label.bold] * len(label.text)
        left = label.x - width * (label.right + label.centred / 2)
        assert 0 <= left <= picture.width - width, label
    ticks = [label.text for label in labels if label.right]
    assert len(set(ticks)) == len(ticks) > 1


def test_a_key_that_has_no_room_beside_the_title_stands_below() -> None:
    names = ["restart", "rollback", "skipped step", "spike", "failed save", "watchdog"]
    curves = [Curve(name, BLUE, np.arange(9), np.ones(9)) for name in ("training", "held out")]
    few = chart("Loss, nats per token", curves)
    many = chart("Loss, nats per token", curves, marks=[Marks(name, RED, np.array([5.0])) for name in names])
    keys = [shape for shape in many.shapes if isinstance(shape, Label) and shape.text.split(" (")[0] in names]
    title = next(shape for shape in many.shapes if isinstance(shape, Label) and shape.text == many.title)
    assert len(keys) == len(names)
    assert all(key.x > 15 and key.y > title.y for key in keys)
    assert many.height > few.height
    lines = {y: sorted(key.x for key in keys if key.y == y) for y in {key.y for key in keys}}
    assert all(x + 50 < after for line in lines.values() for x, after in pairwise(line))


@pytest.mark.parametrize(("count", "joined"), [(50, False), (5000, True)])
def test_few_dots_are_dots_and_many_are_a_line(count: int, joined: bool) -> None:
    picture = chart("a", [Curve("a", BLUE, np.arange(count), np.arange(count), dots=True)])
    assert any(isinstance(shape, Line) for shape in picture.shapes) == joined
    assert any(isinstance(shape, Rect) and shape.colour == BLUE for shape in picture.shapes) != joined


def test_names_are_no_markup() -> None:
    svg = chart("<b>&", [Curve("<script>", BLUE, np.arange(3), np.ones(3)), Curve("b", RED, np.arange(3), np.ones(3))])
    assert "<script>" not in svg.svg()
    assert "&lt;script&gt;" in svg.svg()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (1.98, 8.4, [2, 4, 6, 8]),
        (0, 0.00101, [0, 0.0005, 0.001]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert Axis(low, high).ticks() == pytest.approx(ticks)


@pytest.mark.parametrize(("low", "high"), [(0.5, 70), (1e-9, 1e9), (1, 40)])
def test_a_wide_range_is_logarithmic_and_has_a_few_ticks(low: float, high: float) -> None:
    axis = Axis.around(np.array([low, high]))
    assert axis.logarithmic
    assert 2 <= len(axis.ticks()) <= 6
    assert 0 < axis.place(np.array(low)) < 0.2


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (3e-4, "3e-4"),
        (-1.5e-7, "-1.5e-7"),
        (2.34567, "2.346"),
        (9999, "9999"),
        (12345, "12.35k"),
        (3.2e9, "3.2G"),
    ],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text
    assert not re.search("e.0", short(number))
