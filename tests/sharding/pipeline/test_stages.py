"""The split of layers over stages: every layer once, in the model's order; what cannot be split is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.pipeline.stages import Stages, split_layers


@pytest.mark.parametrize(
    ("layers", "stages", "chunks", "explicit", "expected"),
    [
        (8, 4, 1, None, (2, 2, 2, 2)),
        (30, 4, 1, None, (8, 8, 7, 7)),
        (7, 3, 2, None, (2, 1, 1, 1, 1, 1)),
        (6, 2, 3, None, (1, 1, 1, 1, 1, 1)),
        (22, 2, 2, [5, 6, 6, 5], (5, 6, 6, 5)),
        (9, 3, 1, (1, 7, 1), (1, 7, 1)),
    ],
)
def test_layers_of_each_virtual_stage(
    layers: int, stages: int, chunks: int, explicit: list[int] | None, expected: tuple[int, ...]
) -> None:
    split = split_layers(layers, stages, chunks, explicit)
    assert (split.num_stages, split.num_chunks, split.num_layers) == (stages, chunks, expected)


def test_a_chunk_is_every_other_virtual_stage_and_short_ones_are_filled_up() -> None:
    """7 layers on 2 stages of 2 chunks: virtual stages 0 and 2 are on stage 0, 1 and 3 on stage 1."""
    split = split_layers(7, 2, 2, [2, 1, 3, 1])
    np.testing.assert_array_equal(
        split.numbers, np.array([[[0, 1, -1], [3, 4, 5]], [[2, -1, -1], [6, -1, -1]]], np.int32), strict=True
    )
    assert split.order == (0, 1, -1, 3, 4, 5, 2, -1, -1, 6, -1, -1)
    assert split.missing


@pytest.mark.parametrize(("layers", "chunks", "order"), [(8, 1, ()), (8, 2, (0, 1, 4, 5, 2, 3, 6, 7))])
def test_layers_lie_as_they_come_unless_they_must_not(layers: int, chunks: int, order: tuple[int, ...]) -> None:
    split = split_layers(layers, 2, chunks, None)
    assert split.order == order
    assert not split.missing


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_every_layer_is_somewhere_once(stages: int, chunks: int, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 5), min_size=stages * chunks, max_size=stages * chunks))
    split = split_layers(sum(counts), stages, chunks, counts)
    assert split.numbers.shape == (stages, chunks, split.depth)
    in_turn = split.numbers.swapaxes(0, 1).ravel()  # through all stages, then through their next chunks
    assert in_turn[in_turn >= 0].tolist() == list(range(sum(counts)))
    assert (split.numbers >= 0).sum(axis=2).T.ravel().tolist() == counts
    order = split.order or tuple(range(sum(counts)))
    assert order == tuple(split.numbers.ravel().tolist())
    assert split.missing == (-1 in order)


@given(st.integers(1, 100), st.integers(1, 8), st.integers(1, 4))
def test_an_even_split_is_as_even_as_can_be(layers: int, stages: int, chunks: int) -> None:
    if stages * chunks > layers:
        with pytest.raises(ValueError, match=f"more than the {layers} layers"):
            split_layers(layers, stages, chunks, None)
        return
    split = split_layers(layers, stages, chunks, None)
    assert sum(split.num_layers) == layers
    assert max(split.num_layers) - min(split.num_layers) <= 1
    assert list(split.num_layers) == sorted(split.num_layers, reverse=True), "the first ones have one more"


@pytest.mark.parametrize(
    ("explicit", "message"),
    [
        (
            [4, 4],
            "pipeline.layers has 2 numbers, and there are 4 virtual stages: mesh.pipeline=2 x "
            "pipeline.virtual_stages=2; give one number for each",
        ),
        ([], "pipeline.layers has 0 numbers, and there are 4 virtual stages"),
        ([3, 0, 3, 2], "pipeline.layers gives 0 layers to virtual stage 1; each has 1 at least"),
        ([3, 3, 3, -1], "pipeline.layers gives -1 layers to virtual stage 3"),
        ([2, 2, 2, 1], "pipeline.layers adds up to 7, and the model has 8 layers; add 1"),
        ([2, 2, 3, 3], "pipeline.layers adds up to 10, and the model has 8 layers; take away 2"),
        (
            None,
            "mesh.pipeline=2 x pipeline.virtual_stages=5 = 10 stages are more than the 8 layers of the model "
            "(model.layers); use at most 8 in all",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(explicit: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        split_layers(8, 2, 5 if explicit is None else 2, explicit)


def test_one_stage_holds_all() -> None:
    assert Stages(1, (5,)).numbers.tolist() == [[[0, 1, 2, 3, 4]]]
    assert Stages(1, (5,)).order == ()
