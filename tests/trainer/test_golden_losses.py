"""The losses of five steps, digit for digit: what a change that is not meant to change numbers may not change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.equality import reference, train
from tests.trainer.layouts import BLOOM, GPT2, LLAMA, Row

GOLDEN = Path(__file__).parents[1] / "golden/losses.json"
MESH = {"data": 2, "tensor": 2, "zero": 3}
ROWS = [row for task in (LLAMA, GPT2, BLOOM) for row in (Row(task), Row(task, **MESH))]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_losses_are_those_of_yesterday(row: Row) -> None:
    """After a change that is meant: UPDATE_GOLDEN=1 pytest tests/trainer/test_golden_losses.py, and read the diff.

    Processors differ in the last digits: in the order of a sum, and in what they do in one instruction.
    """
    losses = (reference(row.task) if row.num_devices == 1 else train(row, None)).losses
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("UPDATE_GOLDEN"):
        golden[str(row)] = losses.astype(float).tolist()
        GOLDEN.write_text(json.dumps(golden, indent=2) + "\n")
    np.testing.assert_allclose(losses, golden[str(row)], rtol=1e-6)


def test_the_file_holds_these_rows_and_no_other() -> None:
    assert list(json.loads(GOLDEN.read_text())) == [str(row) for row in ROWS]
