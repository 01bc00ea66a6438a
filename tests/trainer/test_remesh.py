"""What one layout has saved goes on on another: nothing is converted, and no bit of the state differs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.remesh import AFTER, LAYOUTS, Layout, Result, problems, run
from sharding.mesh import make_mesh
from trainer.checkpoint import read
from trainer.checkpoint.boxes import Box, Target
from trainer.program import Program
from trainer.weights import abstract_saved

SAMPLE = [
    layout
    for layout in LAYOUTS
    if layout.name in ("zero3 data3", "interleaved2 data2 tensor2", "bfloat16 zero3 data4 host")
]
PAIRS = [(saver, loader) for saver in SAMPLE for loader in SAMPLE]


@dataclass
class Matrix:
    own: dict[str, Result] = field(default_factory=dict)
    """By the layout that saved: its own run."""
    loaded: dict[tuple[str, str], Result] = field(default_factory=dict)
    """By who saved and who loaded."""
    rooms: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """Bytes of each array in host memory that a checkpoint was read into."""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    folder, matrix, made = tmp_path_factory.mktemp("matrix"), Matrix(), read._room
    with pytest.MonkeyPatch.context() as patch:
        rooms: list[int] = []

        def room(box: Box, dtype: np.dtype) -> Target:
            rooms.append(box.size * dtype.itemsize)
            return made(box, dtype)

        patch.setattr(read, "_room", room)
        for layout in SAMPLE:
            matrix.own[layout.name] = run(layout, [], folder)[0]
        for saver, loader in PAIRS:
            rooms.clear()
            (matrix.loaded[saver.name, loader.name],) = run(loader, [saver], folder)
            matrix.rooms[saver.name, loader.name] = list(rooms)
        yield matrix


@pytest.mark.parametrize(("saver", "loader"), PAIRS, ids=[f"{saver.name} -> {loader.name}" for saver, loader in PAIRS])
def test_what_one_layout_saved_another_goes_on_with(saver: Layout, loader: Layout, matrix: Matrix) -> None:
    assert problems(saver, matrix.own[saver.name], loader, matrix.loaded[saver.name, loader.name]) == []


def test_losses_fall_after_it_and_are_of_the_state_that_was_loaded(matrix: Matrix) -> None:
    """So that equal losses say something: bfloat16 leads elsewhere in the first three steps."""
    for own in matrix.own.values():
        assert len(own.losses) == AFTER
        assert own.losses[-1] < own.losses[0]
    float32, bfloat16 = (matrix.loaded[saver, "zero3 data3"] for saver in ("zero3 data3", "bfloat16 zero3 data4 host"))
    assert float32.apart(bfloat16) > 1e-5


@pytest.mark.parametrize(("saver", "loader"), PAIRS, ids=[f"{saver.name} -> {loader.name}" for saver, loader in PAIRS])
def test_each_part_of_an_array_is_read_once_and_no_more_than_a_part_at_a_time(
    saver: Layout, loader: Layout, matrix: Matrix, tmp_path: Path
) -> None:
    config = loader.config(tmp_path)
    program = Program(config, make_mesh(config.mesh, jax.devices()[: loader.row.num_devices]))
    expected = []
    for array in abstract_saved(program).values():
        parts = set(map(str, array.sharding.devices_indices_map(array.shape).values()))
        shard = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        expected += [shard] * len(parts)
    assert sorted(matrix.rooms[saver.name, loader.name]) == sorted(expected)
