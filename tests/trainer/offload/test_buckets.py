"""Whatever the sizes, every element of a shard travels once, in its place, and no bucket is larger than it may be."""

from __future__ import annotations

import math
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from trainer.offload.buckets import UNIT, Bucket, cut

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
SHARDS = st.dictionaries(st.sampled_from("abcd"), SHAPES, min_size=1)


def places(bucket: Bucket) -> list[int]:
    """The elements of a bucket, as the devices see it: so many columns in each of so many rows of the matrix."""
    rows = range(bucket.row, bucket.row + bucket.rows)
    columns = range(bucket.column, bucket.column + bucket.columns)
    return [row * bucket.width + column for row in rows for column in columns]


@given(SHARDS, st.integers(1, 100))
def test_every_element_is_in_one_bucket_and_in_its_order(shards: dict[str, tuple[int, ...]], most: int) -> None:
    found = {name: list(buckets) for name, buckets in groupby(cut(shards, most), lambda bucket: bucket.name)}
    assert list(found) == list(shards), "a parameter's buckets come one after another"
    for name, shape in shards.items():
        assert [place for bucket in found[name] for place in places(bucket)] == list(range(math.prod(shape)))


@given(SHARDS, st.integers(1, 100))
def test_a_bucket_is_one_piece_and_as_large_as_it_may_be_at_most(shards: dict[str, tuple[int, ...]], most: int) -> None:
    for bucket in cut(shards, most):
        assert places(bucket) == list(range(bucket.start, bucket.start + bucket.size))
        assert 1 <= bucket.size <= most


@given(SHARDS, st.integers(1, 100))
def test_those_by_row_are_whole_pages_of_one_row(shards: dict[str, tuple[int, ...]], most: int) -> None:
    long = {name: (*shape, 1000) for name, shape in shards.items()}
    found = list(cut(long, most, by_row=long))
    assert [place for bucket in found for place in places(bucket)] == [
        place for shape in long.values() for place in range(math.prod(shape))
    ]
    assert {bucket.rows for bucket in found} == {1}
    assert all(bucket.column % UNIT == 0 and bucket.size < most + UNIT for bucket in found)


def test_buckets_of_a_parameter_are_nearly_equal_and_no_more_than_needed() -> None:
    """A small rest would be one more trip for little."""
    assert [bucket.rows for bucket in cut({"w": (10, 7)}, 63)] == [5, 5]
    assert [bucket.columns for bucket in cut({"w": (1, 100)}, 99)] == [50, 50]


def test_what_fits_is_cut_nowhere() -> None:
    assert list(cut({"w": (4, 3, 2), "b": (5,)}, 24)) == [Bucket("w", 0, 4, 0, 6, 6), Bucket("b", 0, 5, 0, 1, 1)]
