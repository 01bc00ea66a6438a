"""Runs of elements are taken apart into boxes, and put where they belong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.boxes import Box, Target, boxes, run_of, scatter

shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(shapes)
    begin = draw(st.integers(0, math.prod(shape)))
    return shape, begin, draw(st.integers(begin, math.prod(shape)))


@st.composite
def box_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    starts = [draw(st.integers(0, length - 1)) for length in shape]
    lengths = [draw(st.integers(1, length - start)) for start, length in zip(starts, shape, strict=True)]
    return Box(tuple(starts), tuple(lengths))


@given(runs())
def test_boxes_are_the_elements_of_a_run_in_order(run: tuple[tuple[int, ...], int, int]) -> None:
    shape, begin, end = run
    array = np.arange(math.prod(shape)).reshape(shape)
    whole = Box((0,) * len(shape), shape)
    found = [array[box.within(whole)].reshape(-1) for box in boxes(shape, begin, end)]
    np.testing.assert_array_equal(np.concatenate([[], *found]), np.arange(begin, end))


@given(st.data())
def test_what_is_scattered_block_by_block_is_what_was_cut_out(data: st.DataObject) -> None:
    """A piece of an array, in blocks of any size, fills any part of the array as far as it has it."""
    shape = data.draw(shapes)
    whole = Box((0,) * len(shape), shape)
    array = np.arange(math.prod(shape)).reshape(shape)
    piece, wanted = data.draw(box_in(shape)), data.draw(box_in(shape))
    elements = array[piece.within(whole)].reshape(-1)
    room = np.full(wanted.size, -1)
    target = Target(wanted, room.reshape(wanted.shape), room.view(np.uint8))
    block = data.draw(st.integers(1, max(elements.size, 1)))
    for begin in range(0, elements.size, block):
        scatter(elements[begin : begin + block], piece, begin, [target])
    expected = np.full(shape, -1)
    if (common := piece.common(wanted)) is not None:
        expected[common.within(whole)] = array[common.within(whole)]
        first, end = run_of(common, piece)
        assert elements[first] == array[common.within(whole)].reshape(-1)[0]
        assert elements[end - 1] == array[common.within(whole)].reshape(-1)[-1]
    np.testing.assert_array_equal(target.array, expected[wanted.within(whole)])


@pytest.mark.parametrize(("shape", "num"), [((), 1), ((5,), 1), ((3, 4), 3), ((3, 3, 4), 5)])
def test_a_run_is_few_boxes(shape: tuple[int, ...], num: int) -> None:
    size = math.prod(shape)
    runs_ = [(begin, end) for begin in range(size) for end in range(begin + 1, size + 1)]
    assert max(len(list(boxes(shape, *run))) for run in runs_) == num
