"""A user whose stages mostly wait is told so, and what would help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainer.config import Config
from trainer.pipeline import advice, make_schedule


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"global": 16, "micro": 2}, None),
        (
            {"global": 16},
            "with 1 micro-batch on 4 stages, stages wait 300% .*; a smaller batch.micro .* 16 .* wait 19%",
        ),
        ({"global": 4, "micro": 1}, "wait 75% .*; a larger batch.global"),
    ],
)
def test_few_micro_batches_are_said(batch: dict[str, int], expected: str | None) -> None:
    config = Config.from_dict({"model": {"layers": 4}, "mesh": {"pipeline": 4}, "batch": batch})
    said = advice(config, make_schedule(config, config.mesh.sizes))
    assert said is None if expected is None else re.search(expected, said or ""), said


def test_chunks_wait_for_less() -> None:
    pipeline = {"schedule": "interleaved_1f1b", "virtual_stages": 2}
    tree = {"model": {"layers": 8}, "mesh": {"pipeline": 4}, "pipeline": pipeline, "batch": {"global": 1}}
    config = Config.from_dict(tree)
    said = advice(config, make_schedule(config, config.mesh.sizes))
    assert re.search("a larger batch.global makes .* 16 of them would wait 9%", said or ""), said


def test_a_table_is_told_what_another_order_would_wait(tmp_path: Path) -> None:
    """One micro-batch after the other. A larger batch would need another table."""
    path = tmp_path / "one_by_one.CSV"
    lines = ["tick,stage,what,chunk,micro_batch,slot"]
    for i in range(4):
        lines += [f"{3 * i},0,forward,0,{i},", f"{3 * i + 1},1,forward,0,{i},"]
        lines += [f"{3 * i + 1},1,backward,0,{i},", f"{3 * i + 2},0,backward,0,{i},"]
    path.write_text("\n".join(lines))
    tree = {"mesh": {"pipeline": 2}, "pipeline": {"schedule": str(path)}, "batch": {"global": 4, "micro": 1}}
    config = Config.from_dict(tree)
    said = advice(config, make_schedule(config, config.mesh.sizes))
    assert re.search("wait 100% .* as .*one_by_one.CSV has it; interleaved_1f1b would wait 25%", said or ""), said
