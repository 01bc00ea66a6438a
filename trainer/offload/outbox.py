"""New weights on their way from the update to where the train step reads them."""

from __future__ import annotations

import math
import queue
from typing import Protocol

import jax
import numpy as np

from trainer.offload.buckets import Bucket
from trainer.offload.exchange import Exchange
from trainer.offload.layers import Layers

Weights = dict[str, jax.Array]
Parts = list[np.ndarray]
"""Of one bucket: each group's new weights, flat, in the dtype that is computed with."""


class Outbox(Protocol):
    """Takes new weights bucket by bucket: `open` and `send` are called in turn for each, by one thread each."""

    def open(self, bucket: Bucket) -> Parts:
        """Where to write a bucket's new weights; waits until there is room."""

    def send(self, weights: Weights, bucket: Bucket, parts: Parts) -> None:
        """Puts them into `weights`, using up the array that is there."""


class ToDevices:
    """A bucket at a time, through pieces of host memory for `waiting` buckets of at most `most` elements."""

    def __init__(self, exchange: Exchange, dtype: np.dtype, most: int, waiting: int) -> None:
        self.exchange = exchange
        num_groups = max(len(groups) for groups in exchange.groups.values())
        self._free: queue.Queue[np.ndarray] = queue.Queue()
        for _ in range(waiting):
            self._free.put(np.empty((num_groups, most), dtype))

    def open(self, bucket: Bucket) -> Parts:
        rows = self._free.get()
        return [row[: bucket.size] for row in rows[: len(self.exchange.groups[bucket.name])]]

    def send(self, weights: Weights, bucket: Bucket, parts: Parts) -> None:
        try:
            weights[bucket.name] = self.exchange.up(weights[bucket.name], bucket, parts)
        finally:
            self._free.put(_owner(parts[0]))


class ToHostMemory:
    """A parameter at a time: gathered in memory of its own, and handed over when its last bucket is there."""

    def __init__(self, exchange: Exchange, dtype: np.dtype) -> None:
        self.exchange = exchange
        self.dtype = dtype
        self._shards: list[np.ndarray] = []  # of the parameter at work, one for each group

    def open(self, bucket: Bucket) -> Parts:
        if bucket.start == 0:
            size = math.prod(self.exchange.layouts[bucket.name].shard_shape)
            self._shards = [np.empty(size, self.dtype) for _ in self.exchange.groups[bucket.name]]
        return [shard[bucket.start :][: bucket.size] for shard in self._shards]

    def send(self, weights: Weights, bucket: Bucket, parts: Parts) -> None:
        whole = [_owner(part) for part in parts]
        if bucket.start + bucket.size == whole[0].size:
            weights.pop(bucket.name).delete()
            weights[bucket.name] = self.exchange.on_host(bucket.name, whole)


class ToFile:
    """A bucket of a layer at a time, through pages of memory for `waiting` buckets of at most `most` elements."""

    def __init__(self, layers: Layers, most: int, waiting: int) -> None:
        self.layers = layers
        self._free: queue.Queue[list[np.ndarray]] = queue.Queue()
        self._open: queue.Queue[list[np.ndarray]] = queue.Queue()  # in the order in which they will be sent
        for _ in range(waiting):
            self._free.put(layers.rows(most, layers.dtype))

    def open(self, bucket: Bucket) -> Parts:
        rows = self._free.get()
        self._open.put(rows)
        return [row.view(self.layers.dtype)[: bucket.size] for row in rows[: self.layers.num_groups(bucket.name)]]

    def send(self, weights: Weights, bucket: Bucket, parts: Parts) -> None:
        rows = self._open.get()
        try:
            self.layers.write(bucket, rows[: len(parts)])
        finally:
            self._free.put(rows)


def _owner(view: np.ndarray) -> np.ndarray:
    """The array that a view is of, or of whose view it is one."""
    assert isinstance(view.base, np.ndarray)
    return view.base
