"""Saving and loading take a constant of host memory, whatever the state; a small sample of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import checkpoint_memory


def test_memory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_memory, "SAVES", 4)
    found = checkpoint_memory.Measured(tmp_path, 100_000_000)
    assert found.grown < checkpoint_memory.MOST_GROWN
    assert max(found.of_save, found.of_load) < checkpoint_memory.CONSTANT
