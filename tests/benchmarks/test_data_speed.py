"""The benchmark of data runs, and measures what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import data_speed
from benchmarks.common import Sizes
from trainer.data.indexed import IndexedDataset

TINY = Sizes(layers=1, hidden=32, heads=4, ffn=48, vocab=320, sequence=16, batch=4)


def test_the_pair_has_the_tokens_it_is_asked_for(tmp_path: Path) -> None:
    data_speed.make_pair(tmp_path / "text", 5000, 320)
    indexed = IndexedDataset.open(tmp_path / "text")
    assert indexed.num_tokens == 5000
    assert np.max(indexed.tokens) < 320


def test_all_is_measured_and_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_speed, "SHAPES", ((16, 4), (32, 2)))
    data_speed.main(num_tokens=20_000, rounds=2, sizes=TINY)
    said = capsys.readouterr().out
    for words in ("4 x 16", "2 x 32", "1.01", "1,000,000"):
        assert words in said
