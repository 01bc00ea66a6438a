"""Packed windows: what counts, and that a document never meets another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.indexed import IndexedDataset
from trainer.data.packing import FIELDS, PADDING, PackedSequences
from trainer.errors import ConfigError


def in_memory(documents: Sequence[Sequence[int]]) -> IndexedDataset:
    lengths = np.array([len(document) for document in documents], np.int32)
    tokens = np.array([token for document in documents for token in document], np.int32)
    offsets = (np.cumsum(lengths, dtype=np.int64) - lengths) * 4
    return IndexedDataset(tokens, lengths, offsets, np.arange(len(documents) + 1))


def packed(documents: Sequence[Sequence[int]], sequence: int, start: int | None = None) -> PackedSequences:
    return PackedSequences(in_memory(documents), range(len(documents)), sequence, start)


def test_windows_by_hand():
    windows = packed([[1, 2, 3, 0], [4, 0], [5, 6, 0]], sequence=5)
    assert len(windows) == 2
    assert {name: array.tolist() for name, array in windows[0].items()} == {
        "tokens": [1, 2, 3, 0, 4],
        "targets": [2, 3, 0, 4, 0],
        "segments": [1, 1, 1, 1, 2],
        "positions": [0, 1, 2, 3, 0],
        "weights": [1, 1, 1, 0, 1],
    }
    assert {name: array.tolist() for name, array in windows[1].items()} == {
        "tokens": [0, 5, 6, 0, 0],
        "targets": [5, 6, 0, 0, 0],
        "segments": [1, 2, 2, 0, 0],
        "positions": [0, 0, 1, 0, 0],
        "weights": [0, 1, 1, 0, 0],
    }


def test_windows_by_hand_where_documents_begin_after_the_token_that_ends_them():
    windows = packed([[1, 2, 3, 0], [4, 0], [5, 6, 0]], sequence=5, start=0)
    assert (len(windows), windows.num_targets) == (2, 9)
    assert {name: array.tolist() for name, array in windows[0].items()} == {
        "tokens": [0, 1, 2, 3, 0],
        "targets": [1, 2, 3, 0, 4],
        "segments": [1, 1, 1, 1, 2],
        "positions": [0, 1, 2, 3, 0],
        "weights": [1, 1, 1, 1, 1],
    }
    assert {name: array.tolist() for name, array in windows[1].items()} == {
        "tokens": [4, 0, 5, 6, 0],
        "targets": [0, 5, 6, 0, 0],
        "segments": [1, 2, 2, 2, 0],
        "positions": [0, 0, 1, 2, 0],
        "weights": [1, 1, 1, 1, 0],
    }


documents_of_numbered_tokens = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda x: sum(x) >= 2)


@given(lengths=documents_of_numbered_tokens, sequence=st.integers(1, 20))
def test_every_token_that_has_a_forerunner_in_its_document_counts_once(lengths: list[int], sequence: int):
    # Token value = 100 x document + place, so every array can be checked against the tokens themselves.
    windows = packed([[100 * d + i for i in range(length)] for d, length in enumerate(lengths)], sequence)
    counted = []
    for k in range(len(windows)):
        item = windows[k]
        assert {name: array.dtype for name, array in item.items()} == FIELDS
        assert {array.shape for array in item.values()} == {(sequence,)}
        inside = item["segments"] > 0
        same_segment = item["segments"][:, None] == item["segments"]
        same_document = item["tokens"][:, None] // 100 == item["tokens"] // 100
        both = inside[:, None] & inside
        np.testing.assert_array_equal(same_segment[both], same_document[both])
        first_of_segment = np.searchsorted(item["segments"][inside], item["segments"][inside])
        np.testing.assert_array_equal(item["positions"][inside], np.arange(inside.sum()) - first_of_segment)
        assert not any(array[~inside].any() for array in item.values())
        assert item["weights"].tolist() == [
            float(ok and target == token + 1)
            for ok, token, target in zip(inside, item["tokens"], item["targets"], strict=True)
        ]
        counted += item["targets"][item["weights"] > 0].tolist()
    assert counted == [100 * d + i for d, length in enumerate(lengths) for i in range(1, length)]


@given(lengths=documents_of_numbered_tokens, sequence=st.integers(1, 20))
def test_after_a_start_token_every_token_counts_once_and_sees_its_document_alone(lengths: list[int], sequence: int):
    """Token value = 100 x document + place, and -1 ends each: what a target may see is read off the tokens."""
    documents = [[*(100 * d + i for i in range(length)), -1] for d, length in enumerate(lengths)]
    windows = packed(documents, sequence, start=-1)
    counted = []
    for item in (windows[k] for k in range(len(windows))):
        inside = item["segments"] > 0
        np.testing.assert_array_equal(item["weights"], inside)
        begins = np.append(True, np.diff(item["segments"][inside]) != 0)
        np.testing.assert_array_equal(begins[1:], item["tokens"][inside][1:] == -1)
        place = np.arange(inside.sum())
        np.testing.assert_array_equal(item["positions"][inside], place - np.maximum.accumulate(place * begins))
        assert not any(array[~inside].any() for array in item.values())
        np.testing.assert_array_equal(item["tokens"][inside][1:], item["targets"][inside][:-1])
        counted += item["targets"][inside].tolist()
    assert counted == [token for document in documents for token in document]
    assert windows.num_targets == len(counted)


@given(
    lengths=documents_of_numbered_tokens,
    sequence=st.integers(1, 9),
    seed=st.integers(0, 99),
    start=st.sampled_from([None, 7]),
)
def test_windows_are_the_same_several_at_once_and_wherever_documents_stand(
    lengths: list[int], sequence: int, seed: int, start: int | None
):
    documents = [[100 * d + i for i in range(length)] for d, length in enumerate(lengths)]
    windows = packed(documents, sequence, start)
    random = np.random.default_rng(seed)
    order = random.permutation(len(documents))
    indexed, place = in_memory([documents[d] for d in order]), np.argsort(order)
    moved = IndexedDataset(indexed.tokens, indexed.lengths[place], indexed.offsets[place], indexed.documents)
    elsewhere = PackedSequences(moved, range(len(documents)), sequence, start)
    chosen = random.integers(PADDING, len(windows), size=5)
    for several in (windows.windows(chosen), elsewhere.windows(chosen)):
        assert {name: array.dtype for name, array in several.items()} == FIELDS
        for row, index in enumerate(chosen):
            for name, array in several.items():
                alone = 0 if index == PADDING else windows[index][name]
                np.testing.assert_array_equal(array[row], alone)


def test_a_range_of_documents_never_shows_another():
    indexed = in_memory([[1, 0], [2, 2, 2, 0], [3, 3, 0], [4, 0]])
    windows = PackedSequences(indexed, range(1, 3), sequence=4)
    assert windows.num_tokens == 7
    assert {int(token) for k in range(len(windows)) for token in windows[k]["tokens"]} == {0, 2, 3}


def test_too_little_text_is_refused():
    with pytest.raises(ConfigError, match=r"documents 0 to 1 of 1 hold 1 tokens, and 2 make the shortest sample"):
        packed([[1]], sequence=4)
    for start in (None, 0):
        with pytest.raises(ConfigError, match="hold 0 tokens"):
            PackedSequences(in_memory([[1, 2]]), range(1, 1), 4, start)
    assert len(packed([[1]], sequence=4, start=0)) == 1


def test_windows_outside_are_an_index_error():
    windows = packed([[1, 2, 3]], sequence=2)
    for index in (-1, 1):
        with pytest.raises(IndexError):
            windows[index]


def test_places_past_32_bits(tmp_path: Path):
    """Three documents of 2**31 - 1 tokens, in a sparse file of 12 GB."""
    length = 2**31 - 1
    tokens = np.memmap(tmp_path / "sparse.bin", np.uint16, mode="w+", shape=3 * length)
    tokens[-3:] = [7, 8, 9]
    tokens[2 * length - 1 : 2 * length + 1] = [5, 6]
    lengths = np.full(3, length, np.int32)
    offsets = np.arange(3, dtype=np.int64) * 2 * length
    windows = PackedSequences(IndexedDataset(tokens, lengths, offsets, np.arange(4)), range(3), sequence=1024)
    assert len(windows) == -(-(3 * length - 1) // 1024)
    last = windows[len(windows) - 1]
    count = int((last["segments"] > 0).sum())
    assert last["targets"][count - 3 : count].tolist() == [7, 8, 9]
    border = windows[(2 * length - 1) // 1024]
    at = (2 * length - 1) % 1024
    assert (border["tokens"][at], border["targets"][at], border["weights"][at]) == (5, 6, 0)
    assert border["positions"][at + 1] == 0
