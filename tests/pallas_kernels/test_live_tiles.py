"""The table of live tiles holds every pair that is seen, and calls whole only what is."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.flash.live_tiles import live_tiles
from pallas_kernels.flash.spec import Spec, Tile, Tiles

NUM_QUERIES, NUM_KEYS = 37, 51
TILE = Tile(8, 16, 4, 2)
# causal, window
MASKS = [(True, None), (True, 1), (True, 20), (False, None), (False, 12)]
offsets = st.integers(-70, 70)
ids = st.lists(st.integers(0, 3), min_size=NUM_QUERIES + NUM_KEYS, max_size=NUM_QUERIES + NUM_KEYS)


@cache
def jitted(causal: bool, window: int | None, by_keys: bool) -> Any:
    spec = Spec(1.0, causal, window, None, Tiles(TILE, TILE, TILE), True)
    return jax.jit(
        lambda offset, segments: live_tiles(spec, TILE, NUM_QUERIES, NUM_KEYS, offset, segments, by_keys=by_keys)
    )


def seen(causal: bool, window: int | None, offset: int, segments: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """[S, T] bool, from the definition."""
    distance = offset + np.arange(NUM_QUERIES)[:, None] - np.arange(NUM_KEYS)
    seen = np.ones(distance.shape, bool)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= distance < window
    if segments is not None:
        seen &= segments[0][0][:, None] == segments[1][0]
    return seen


def tiles_of(pairs: np.ndarray, beyond: bool) -> np.ndarray:
    """[blocks of queries, blocks of keys, pairs of a tile]; what lies beyond the ends counts as `beyond`."""
    padding = [(0, -size % block) for size, block in zip(pairs.shape, TILE[:2], strict=True)]
    padded = np.pad(pairs, padding, constant_values=beyond)
    rows, columns = (size // block for size, block in zip(padded.shape, TILE[:2], strict=True))
    return padded.reshape(rows, TILE.queries, columns, TILE.keys).swapaxes(1, 2).reshape(rows, columns, -1)


@pytest.mark.parametrize("by_keys", [False, True], ids=["by queries", "by keys"])
@pytest.mark.parametrize(("causal", "window"), MASKS)
@settings(max_examples=25, deadline=None)
@given(offset=offsets, numbers=st.none() | ids, ordered=st.booleans())
def test_every_seen_pair_is_visited_and_what_is_called_whole_is_seen_whole(
    causal: bool, window: int | None, by_keys: bool, offset: int, numbers: list[int] | None, ordered: bool
) -> None:
    segments = None
    if numbers is not None:
        parts = numbers[:NUM_QUERIES], numbers[NUM_QUERIES:]
        a, b = (np.array([sorted(part) if ordered else part], np.int32) for part in parts)
        segments = a, b
    table = np.asarray(jitted(causal, window, by_keys)(np.int32(offset), segments))
    pairs = seen(causal, window, offset, segments)

    some = tiles_of(pairs, False).any(-1)
    whole = tiles_of(pairs, False).all(-1)
    if by_keys:
        some, whole = some.T, whole.T
    else:  # rows beyond the last query are never written, so they need no mask
        inside = tiles_of(np.ones_like(pairs), False)[0].all(-1)
        whole = tiles_of(pairs, True).all(-1) & inside

    assert table.shape == (1, len(some), 4)
    for row, (first, full_first, full_end, end) in enumerate(table[0]):
        assert 0 <= first <= full_first <= full_end <= end <= some.shape[1]
        visited = np.zeros(some.shape[1], bool)
        visited[first:end] = True
        assert not (some[row] & ~visited).any()
        assert whole[row, full_first:full_end].all()


@pytest.mark.parametrize("by_keys", [False, True], ids=["by queries", "by keys"])
@pytest.mark.parametrize(("causal", "window"), MASKS)
@settings(max_examples=15, deadline=None)
@given(offset=offsets)
def test_without_segments_nothing_but_tiles_that_hold_something_is_visited(
    causal: bool, window: int | None, by_keys: bool, offset: int
) -> None:
    table = np.asarray(jitted(causal, window, by_keys)(np.int32(offset), None))[0]
    some = tiles_of(seen(causal, window, offset, None), False).any(-1)
    visited = (table[:, 3] - table[:, 0]).sum()
    assert visited == some.sum()


def test_whole_tiles_are_found_where_there_are_any() -> None:
    """A table that called nothing whole would be right, and every tile would pay for its mask."""
    table = np.asarray(jitted(True, None, False)(np.int32(0), None))[0]
    first, full_first, full_end, end = table.T
    np.testing.assert_array_equal(first, 0)
    np.testing.assert_array_equal(end, [1, 1, 2, 2, 3])
    np.testing.assert_array_equal(full_end - full_first, [0, 0, 1, 1, 2])
    documents = np.zeros((1, NUM_QUERIES), np.int32), np.repeat([[0, 1]], [32, NUM_KEYS - 32], axis=1).astype(np.int32)
    np.testing.assert_array_equal(np.asarray(jitted(False, None, False)(np.int32(0), documents))[0], [[0, 0, 2, 2]] * 5)


def test_documents_in_order_visit_only_their_own_tiles() -> None:
    lengths = [16, 16, 19]
    keys = np.repeat(np.arange(3), lengths)[None].astype(np.int32)
    table = np.asarray(jitted(True, None, False)(np.int32(0), (keys[:, :NUM_QUERIES], keys)))[0]
    np.testing.assert_array_equal(table[:, [0, 3]], [[0, 1], [0, 1], [1, 2], [1, 2], [2, 3]])
