"""One program, every layout: each row of the table trains as one device does, to the stated tolerances."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.equality import differences, reference
from sharding.mesh import make_mesh
from tests.trainer.layouts import BLOOM, BLOOM_DEEP, LLAMA, MANY, REST, ROWS, SPANNING, TWO_CHUNKS, Row
from trainer import logical
from trainer.program import Program

ROOT = Path(__file__).parents[2]
FACTORS: dict[str, set[object]] = {
    "zero": {0, 1, 2, 3},
    "data": {1, 2, 3, 4, 8},
    "tensor": {1, 2, 4},
    "replica": {1, 2},
    "accumulation": {1, 3, 4, 6},
    "recompute": {"none", "selective", "full"},
    "scan": {True, False},
    "positions": {"rope", "learned", "alibi"},
    "tied": {True, False},
    "text": {"packed", "whole", "ragged", "idle"},
    "optimizer": {"sgd", "adamw", "adamw-1e-8"},
    "dropout": {True, False},
    "pipeline": {1, 2, 3, 4, 8},
    "schedule": {"gpipe", "1f1b", "interleaved_1f1b"},
    "virtual": {1, 2, 3},
    "layers": {None, (1, 3, 2, 2)},
    "keep": {"residuals", "inputs"},
    "head": {"spread", "last"},
    "attention": {"reference", "pallas"},
    "parts": {1, 2, 3},
}


@pytest.mark.parametrize("row", SPANNING, ids=str)
def test_a_layout_trains_as_one_device_does(row: Row) -> None:
    assert [str(difference) for difference in differences(row) if not difference.fits] == []


@pytest.mark.sweep
@pytest.mark.parametrize("row", SPANNING + REST, ids=str)
def test_every_layout_trains_as_one_device_does(row: Row) -> None:
    assert [str(difference) for difference in differences(row) if not difference.fits] == []


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row is MANY[-1] else [pytest.mark.sweep]) for row in MANY], ids=str
)
def test_more_devices_than_a_test_has(row: Row) -> None:
    command = [sys.executable, "-m", "benchmarks.equality", str(row)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("factor", FACTORS)
def test_the_default_rows_have_every_value(factor: str) -> None:
    assert {_value(row, factor) for row in SPANNING} >= FACTORS[factor]


def test_no_two_rows_have_one_name() -> None:
    assert len({str(row) for row in ROWS}) == len(ROWS)


def _value(row: Row, factor: str) -> object:
    if factor in ("positions", "tied"):
        return getattr(row.config.model, factor)
    return bool(row.task.dropout) if factor == "dropout" else getattr(row if hasattr(row, factor) else row.task, factor)


@pytest.mark.parametrize(
    "row",
    [
        Row(LLAMA, zero=3, data=3, tensor=2),
        Row(BLOOM, zero=1, replica=2, data=4),
        Row(BLOOM_DEEP, zero=2, pipeline=2, data=2, tensor=2, **TWO_CHUNKS),
        Row(BLOOM_DEEP, zero=1, pipeline=3, data=2, layers=(1, 4, 2), head="last"),
    ],
    ids=str,
)
def test_initial_weights_do_not_depend_on_the_mesh(row: Row) -> None:
    program = Program(row.config, make_mesh(row.config.mesh, jax.devices()[: row.num_devices]))
    found = jax.device_get(logical.to_logical(program, program.init()))
    for name, expected in reference(row.task).states[0].items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
