"""What records are filled with is read from them again, whatever the buckets; an update sees all rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from trainer.offload.buckets import cut
from trainer.offload.nvme import Nvme
from trainer.offload.records import Records, Shards
from trainer.offload.tiers import Memory, Tier

SHARDS = {"embedding": (7, 3), "norm": (5,), "one": (1,), "mlp": (2, 3, 4)}
NUM_GROUPS = {"embedding": 2, "norm": 1, "one": 3, "mlp": 2}
ROWS = 3


@pytest.fixture(params=["host", "nvme"])
def make_tier(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Sequence[int]], Tier]:
    return Memory if request.param == "host" else partial(Nvme, tmp_path / "records", buffers=3, direct=False)


def rows_of(name: str, layer: int | None = None) -> list[Shards]:
    """Of each row and each group, other numbers."""
    first = 1000 * list(SHARDS).index(name)
    shard = np.arange(np.prod(SHARDS[name]), dtype=np.float32) + first
    if layer is not None:
        shard = shard.reshape(SHARDS[name][0], -1)[layer]
    return [[shard + 100 * row + 300 * group for group in range(NUM_GROUPS[name])] for row in range(ROWS)]


def read(records: Records) -> dict[str, list[Shards]]:
    return {name: [records.shards(name, row) for row in range(ROWS)] for name in SHARDS}


@pytest.mark.parametrize("most", [1, 2, 8, 1000])
def test_what_is_filled_in_is_read(most: int, make_tier: Callable[[Sequence[int]], Tier]) -> None:
    records = Records(list(cut(SHARDS, most)), NUM_GROUPS, ROWS, make_tier)
    with closing(records.tier):
        asked = []

        def rows(name: str, layer: int | None) -> list[Shards]:
            asked.append((name, layer))
            return rows_of(name, layer)

        records.fill(rows)
        found = read(records)
    assert asked == [(name, None) for name in found] == [(name, None) for name in SHARDS], "one at a time is in memory"
    for name in SHARDS:
        np.testing.assert_array_equal(found[name], rows_of(name), err_msg=name)


def test_what_is_changed_in_a_visit_stays(make_tier: Callable[[Sequence[int]], Tier]) -> None:
    records = Records(list(cut(SHARDS, 4)), NUM_GROUPS, ROWS, make_tier)
    with closing(records.tier):
        records.fill(rows_of)
        with closing(records.visit()) as visit:
            for bucket, group, record in visit:
                for row in range(ROWS):
                    expected = rows_of(bucket.name)[row][group][bucket.start :][: bucket.size]
                    np.testing.assert_array_equal(record[row], expected)
                record[1] += 1
        for name, rows in read(records).items():
            changed = [[shard + (number == 1) for shard in row] for number, row in enumerate(rows_of(name))]
            np.testing.assert_array_equal(rows, changed, err_msg=name)


def test_the_groups_of_a_bucket_follow_each_other(make_tier: Callable[[Sequence[int]], Tier]) -> None:
    """Their gradients come down together."""
    buckets = list(cut(SHARDS, 4))
    records = Records(buckets, NUM_GROUPS, ROWS, make_tier)
    with closing(records.tier):
        visited = [(bucket, group) for bucket, group, _ in records.visit()]
    assert visited == [(bucket, group) for bucket in buckets for group in range(NUM_GROUPS[bucket.name])]


def test_a_copy_does_not_change_with_what_it_is_of(make_tier: Callable[[Sequence[int]], Tier]) -> None:
    records = Records(list(cut(SHARDS, 4)), NUM_GROUPS, ROWS, make_tier)
    with closing(records.tier):
        records.fill(rows_of)
        copies = read(records)
        with closing(records.visit()) as visit:
            for _, _, record in visit:
                record[:] = 0
    np.testing.assert_array_equal(copies["mlp"], rows_of("mlp"))
