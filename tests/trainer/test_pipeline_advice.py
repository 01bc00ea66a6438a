"""A user whose stages mostly wait is told so, and what would help."""

from __future__ import annotations

import re

import pytest

from trainer.config import Config
from trainer.pipeline import advice, make_schedule


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"global": 16, "micro": 2}, None),
        (
            {"global": 16},
            "with 1 micro-batches on 4 stages, stages wait 300% .*; a smaller batch.micro .* 16 .* wait 19%",
        ),
        ({"global": 4, "micro": 1}, "wait 75% .*; a larger batch.global"),
    ],
)
def test_few_micro_batches_are_said(batch: dict[str, int], expected: str | None) -> None:
    config = Config.from_dict({"model": {"layers": 4}, "mesh": {"pipeline": 4}, "batch": batch})
    said = advice(config, make_schedule(config, config.mesh.sizes))
    assert said is None if expected is None else re.search(expected, said or ""), said
