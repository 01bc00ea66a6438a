"""A step whose device is slept through: it takes what was asked of it, and all lanes are noted for the picture."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from benchmarks import offload_overlap
from benchmarks.common import Sizes
from benchmarks.offload_overlap import Case
from docs.pictures import offload_lanes


@pytest.mark.parametrize("tier", ["host", "nvme"])
def test_a_stand_in_takes_its_time(tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Sizes(layers=2, hidden=16, heads=2, ffn=32, vocab=64, sequence=8)
    monkeypatch.setattr(offload_overlap, "MODELS", {"stand-in": (tiny, "bfloat16")})
    monkeypatch.setattr(offload_overlap, "FLOPS", 1e10)
    with contextlib.closing(Case("stand-in", tier, 2, tmp_path)) as case:
        num_parameters = sum(gradient.size for gradient in case.gradients.values())
        found = case.round()
        offload_overlap.write(case, tmp_path / "lanes.csv")
    assert found.compute >= 6 * num_parameters * 8192 * 2 / 1e10
    assert found.rest > 0
    assert found.alone.keys() == {"down", "update", "up"} | ({"disk"} if tier == "nvme" else set())
    lanes = {span.lane for span in offload_lanes.read(tmp_path / "lanes.csv")}
    assert lanes == {"compute", "down", "update", "up"} | ({"read", "write"} if tier == "nvme" else set())
