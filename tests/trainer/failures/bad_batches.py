"""Batches that make a step go wrong, put into a run's data by their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.batches import Batch, TrainBatches


def put(monkeypatch: pytest.MonkeyPatch, nan: tuple[int, ...] = (), spike: tuple[int, ...] = ()) -> None:
    """`nan`: their loss is not finite; `spike`: it is some hundred times what it was."""
    rows = TrainBatches.rows

    def bad_rows(batches: TrainBatches, step: int, low: int, high: int) -> Batch:
        batch = rows(batches, step, low, high)
        if step in nan:
            batch["weights"] = batch["weights"] * np.float32(np.nan)
        if step in spike:
            batch["weights"] = batch["weights"] * np.float32(-1)  # their sum is negative, and counts as 1
        return batch

    monkeypatch.setattr(TrainBatches, "rows", bad_rows)
