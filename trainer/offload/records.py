"""The part of the training state that the host keeps: a record for each bucket and shard, of all that an update needs.

A record is a matrix of float32: the master weights in its first row, each moment in one of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing

import numpy as np

from trainer.offload.buckets import Bucket
from trainer.offload.tiers import Tier

Shards = list[np.ndarray]
"""Of one array: float32 and flat, one for each group of devices that hold the same."""


class Records:
    """
    Args:
        buckets: of all parameters, those of one in a row.
        num_groups: by name of the parameter, into how many different shards this process' devices have it cut.
        num_rows: one for the master weights, and one for each moment.
        make_tier: the sizes of records in bytes -> where they are kept.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        num_groups: Mapping[str, int],
        num_rows: int,
        make_tier: Callable[[Sequence[int]], Tier],
    ) -> None:
        self.buckets = buckets
        self.num_groups = num_groups
        self.num_rows = num_rows
        self._places = [(bucket, group) for bucket in buckets for group in range(num_groups[bucket.name])]
        self.tier = make_tier([bucket.size * num_rows * 4 for bucket, _ in self._places])

    def visit(
        self, read: bool = True, write: bool = True, name: str | None = None
    ) -> Generator[tuple[Bucket, int, np.ndarray], None, None]:
        """Every (bucket, group, record), of one parameter if named, bucket by bucket.

        A record is to be changed before the next is asked for.
        """
        order = [number for number, (bucket, _) in enumerate(self._places) if name in (None, bucket.name)]
        with closing(self.tier.sweep(order, read=read, write=write)) as sweep:
            for number, record in sweep:
                bucket, group = self._places[number]
                yield bucket, group, record.view(np.float32).reshape(self.num_rows, bucket.size)

    def fill(self, rows_of: Callable[[str, int | None], Sequence[Shards]], by_layer: Collection[str] = ()) -> None:
        """Sets everything: `rows_of` a parameter is asked for once, when its turn comes; of those in `by_layer`, once
        for each layer."""
        asked: tuple[str, int | None] = "", None
        rows: list[Shards] = []
        with closing(self.visit(read=False)) as visit:
            for bucket, group, record in visit:
                layer = bucket.row if bucket.name in by_layer else None
                if asked != (bucket.name, layer):
                    asked = bucket.name, layer
                    rows = list(rows_of(*asked))
                start = bucket.start if layer is None else bucket.column
                for row, shards in zip(record, rows, strict=True):
                    row[:] = shards[group][start:][: bucket.size]

    def shards(self, name: str, row: int) -> Shards:
        """A copy of one row of one parameter."""
        size = sum(bucket.size for bucket in self.buckets if bucket.name == name)
        shards = [np.empty(size, np.float32) for _ in range(self.num_groups[name])]
        with closing(self.visit(write=False, name=name)) as visit:
            for bucket, group, record in visit:
                shards[group][bucket.start :][: bucket.size] = record[row]
        return shards
