"""A sample of the flips of `benchmarks.checkpoint_flips`, and whether it would notice one that is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import checkpoint_flips


def test_flipped_bits_are_found(tmp_path: Path) -> None:
    assert checkpoint_flips.main(40, tmp_path / "checkpoints") == 0


def test_a_flip_that_is_not_found_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.checkpoint.blocks.zlib.crc32", lambda _: 0)
    assert checkpoint_flips.main(40, tmp_path / "checkpoints") == 1
