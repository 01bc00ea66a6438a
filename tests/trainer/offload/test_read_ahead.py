"""Rows of a file are those that were written, whoever asks for them and in whatever order, and are read before that."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import OffloadError
from trainer.offload.layer_file import LayerFile, finish
from trainer.offload.read_ahead import Course, ReadAhead
from trainer.offload.sums import Sums

LAYERS, SIZES = 6, (3, 5000)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LayerFile]:
    """The rows of its arrays are filled with 10 x array + layer."""
    with contextlib.closing(LayerFile(tmp_path / "rows", SIZES, LAYERS, direct=False)) as file:
        for array in range(len(SIZES)):
            for layer in range(LAYERS):
                row = file.buffer(array)
                row[:] = 10 * array + layer
                finish(file.write(array, layer, row))
        yield file


def test_rows_are_whole_pages_of_their_own(file: LayerFile) -> None:
    assert [file.buffer(array).size for array in range(2)] == [4096, 8192]
    assert file.num_bytes == LAYERS * (4096 + 8192)
    part = file.buffer(0)
    finish(file.read(1, 2, part, start=4096))
    assert set(part.tolist()) == {12}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, LAYERS - 1), max_size=20), st.integers(1, 4), st.booleans())
def test_a_row_is_the_one_that_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory, asked: list[int], buffers: int, turns: bool
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows"
    with contextlib.closing(LayerFile(path, [3], LAYERS, direct=False)) as file:
        for layer in range(LAYERS):
            finish(file.write(0, layer, np.full(4096, layer, np.uint8)))
        ahead, course, found = ReadAhead(file, 0, buffers), Course(LAYERS), []
        for layer in asked:
            ahead.give(layer, course.after(layer, turns), lambda row: found.append(int(row[0])))
        assert found == asked
        assert ahead.host_bytes == buffers * 4096


def test_devices_at_their_own_pace_all_get_what_they_ask_for(file: LayerFile) -> None:
    ahead, course = ReadAhead(file, 1, 2), Course(LAYERS)
    asked = [*range(LAYERS), *reversed(range(LAYERS))] * 20
    found: list[list[int]] = [[] for _ in range(4)]

    def device(number: int) -> None:
        for layer in asked:
            ahead.give(layer, course.after(layer, True), lambda row: found[number].append(int(row[-1])))

    threads = [threading.Thread(target=device, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[10 + layer for layer in asked]] * 4


@pytest.mark.parametrize(
    ("course", "turns", "after_the_last"),
    [
        ([0, 1, 2, 3, 4, 5], True, [4, 3, 2]),
        ([0, 1, 2, 3, 4, 5], False, [0, 1, 2]),
        ([3, 2, 1, 0, 0, 1], True, [2, 3, 4]),
    ],
)
def test_what_comes_next_is_known(course: list[int], turns: bool, after_the_last: list[int]) -> None:
    guess = Course(LAYERS)
    for layer in course:
        coming = list(islice(guess.after(layer, turns), 3))
    assert coming == after_the_last


def test_a_step_reads_no_row_that_it_has_just_used(file: LayerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = file.read

    def counted(array: int, layer: int, into: np.ndarray, start: int = 0) -> object:
        read.append(layer)
        return original(array, layer, into, start)

    monkeypatch.setattr(file, "read", counted)
    ahead, course = ReadAhead(file, 0, 3), Course(LAYERS)
    for layer in [*range(LAYERS), *reversed(range(LAYERS))]:
        ahead.give(layer, course.after(layer, True), lambda row: None)
    assert read == [0, 1, 2, 3, 4, 5, 2, 1, 0]


def test_what_is_dropped_is_read_anew(file: LayerFile) -> None:
    ahead, found = ReadAhead(file, 0, 2), []
    ahead.begin(range(LAYERS))
    finish(file.write(0, 0, np.full(4096, 99, np.uint8)))
    ahead.drop()
    ahead.give(0, [], lambda row: found.append(int(row[0])))
    assert found == [99]


@pytest.mark.parametrize("layers", [1, 2, LAYERS])
def test_sums_are_those_of_the_micro_batches_before(tmp_path: Path, layers: int) -> None:
    with contextlib.closing(LayerFile(tmp_path / "sums", [4], layers, direct=False)) as file:
        sums = Sums(file, 0, adds=True)
        for micro_batch in range(4):
            for layer in reversed(range(layers)):
                total = np.zeros(1, np.float32)
                if micro_batch:
                    sums.give(layer, lambda row, total=total: np.copyto(total, row.view(np.float32)[:1]))
                assert total == micro_batch * (layer + 1)
                sums.take(layer, lambda row, new=total + layer + 1: np.copyto(row.view(np.float32)[:1], new))
        sums.settle()


def test_a_row_that_cannot_be_read_is_an_error_each_time(file: LayerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> int:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "preadv", fails)
    ahead = ReadAhead(file, 0, 2)
    for _ in range(2):
        with pytest.raises(OffloadError, match="could not be read"):
            ahead.give(0, [1], lambda row: None)
