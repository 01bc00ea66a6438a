"""Layers whose weights and gradients are in two files of this process, but for those that a step works at.

Weights are in the dtype that is computed with, gradients are float32. The update reads these gradients, and writes new
weights. Devices that hold the same shard of a parameter share its rows; the gradient of the first of them counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from trainer.offload.buckets import Bucket
from trainer.offload.buffers import PAGE, allocate, round_up
from trainer.offload.exchange import Exchange
from trainer.offload.lanes import NO_LANES, Lanes
from trainer.offload.layer_file import LayerFile, finish
from trainer.offload.read_ahead import Course, ReadAhead, Use
from trainer.offload.sums import SUMS_HELD, Sums

WEIGHTS_HELD = 3
"""Layers whose weights are in host memory at once: one at work, the others to come."""


@dataclass(frozen=True)
class LayerBytes:
    """What `Layers` takes."""

    weights: int
    gradients: int
    """Of their files."""
    buffers: int
    """Of host memory, for layers at work."""


def layer_bytes(shards: Sequence[int], layers: int, itemsize: int, adds: bool) -> LayerBytes:
    """
    Args:
        shards: See `layer_shards`.
        itemsize: Of a weight.
        adds: There is more than one micro-batch.
    """
    weights, gradients = (sum(round_up(shard * size, PAGE) for shard in shards) for size in (itemsize, 4))
    buffers = WEIGHTS_HELD * weights + (1 + SUMS_HELD * adds) * gradients
    return LayerBytes(layers * weights, layers * gradients, buffers)


def layer_shards(exchange: Exchange, names: Sequence[str]) -> list[int]:
    """Elements of a layer's shard, of each parameter and each group of devices that hold the same."""
    return [math.prod(exchange.layouts[name].shard_shape[1:]) for name in names for _ in exchange.groups[name]]


class Layers:
    """
    Args:
        exchange: Of these parameters at least.
        names: The parameters. All have the same number of layers.
        dtype: Of the weights.
        path: The files', but for what their names end with.
        adds: There is more than one micro-batch.
        most: Elements of the largest bucket of these parameters.
        waiting: Buckets that `gradient` gives before the first of them may change.

    Raises:
        ConfigError: a file cannot be had.
    """

    def __init__(
        self,
        exchange: Exchange,
        names: Sequence[str],
        dtype: np.dtype,
        path: Path,
        *,
        adds: bool,
        most: int,
        waiting: int,
        direct: bool = True,
        lanes: Lanes = NO_LANES,
    ) -> None:
        self.dtype = dtype
        groups = {name: exchange.groups[name] for name in names}
        arrays = [(name, group) for name in names for group in range(len(groups[name]))]
        self._arrays = {array: number for number, array in enumerate(arrays)}
        self._sizes = layer_shards(exchange, names)
        self.num_layers = exchange.layouts[names[0]].shard_shape[0]
        with ExitStack() as undo:

            def file(kind: str, itemsize: int) -> LayerFile:
                rows = [size * itemsize for size in self._sizes]
                whole = path.with_name(f"{path.name}.{kind}")
                made = LayerFile(whole, rows, self.num_layers, direct=direct, lanes=lanes)
                undo.callback(made.close)
                return made

            self._weights, self._gradients = file("weights", dtype.itemsize), file("gradients", 4)
            self._undo = undo.pop_all()
        self._ahead = [ReadAhead(self._weights, number, WEIGHTS_HELD) for number in self._arrays.values()]
        self._courses = [Course(self.num_layers) for _ in self._ahead]
        self._sums = [Sums(self._gradients, number, adds) for number in self._arrays.values()]
        self._places = {
            (name, device): (self._arrays[name, group], device == devices[0])
            for name, found in groups.items()
            for group, devices in enumerate(found)
            for device in devices
        }
        self._down = deque(self.rows(most, np.dtype(np.float32)) for _ in range(waiting))

    @property
    def bytes(self) -> LayerBytes:
        """What is taken, but for the buckets of an update."""
        buffers = sum(ahead.host_bytes for ahead in self._ahead) + sum(one.host_bytes for one in self._sums)
        return LayerBytes(self._weights.num_bytes, self._gradients.num_bytes, buffers)

    def weight(self, name: str, device: jax.Device, layer: int, learns: bool, use: Use) -> None:
        """Hands a device's shard of a layer's weight to `use`, flat.

        Args:
            learns: a backward pass will come, from the last layer to the first.

        Raises:
            OffloadError: it could not be read.
        """
        number, _ = self._places[name, device]
        size, coming = self._sizes[number], self._courses[number].after(layer, learns)
        self._ahead[number].give(layer, coming, lambda row: use(row.view(self.dtype)[:size]))

    def total(self, name: str, device: jax.Device, layer: int, use: Use) -> None:
        """Hands a device's shard of the gradient that was kept last to `use`, flat; not where it does not count.

        Raises:
            OffloadError: it could not be read, or one before not be written.
        """
        number, counts = self._places[name, device]
        if counts:
            self._sums[number].give(layer, lambda row: use(row.view(np.float32)[: self._sizes[number]]))

    def keep(self, name: str, device: jax.Device, layer: int, fill: Use) -> bool:
        """Has `fill` write a device's shard of a gradient, flat; whether it counts, or else is not asked for.

        Raises:
            OffloadError: one before could not be written.
        """
        number, counts = self._places[name, device]
        if counts:
            self._sums[number].take(layer, lambda row: fill(row.view(np.float32)[: self._sizes[number]]))
        return counts

    def settle(self) -> None:
        """Waits until all gradients are written.

        Raises:
            OffloadError: they could not be.
        """
        for one in self._sums:
            one.settle()

    def begin(self) -> None:
        """Once all weights are written anew: forgets the old ones, and has the first layers read.

        Raises:
            OffloadError: a layer that nobody asked for could not be read.
        """
        for ahead in self._ahead:
            ahead.drop()
            ahead.begin(range(self.num_layers))

    def gradient(self, bucket: Bucket) -> list[np.ndarray]:
        """Each group's part of a bucket of one layer's gradient, flat, until `waiting` others have been asked for.

        Raises:
            OffloadError: it could not be read.
        """
        self._down.rotate()
        found = []
        for group, row in enumerate(self._down[0][: self.num_groups(bucket.name)]):
            part = row[: round_up(4 * bucket.size, PAGE)]
            finish(self._gradients.read(self._arrays[bucket.name, group], bucket.row, part, 4 * bucket.column))
            found.append(part.view(np.float32)[: bucket.size])
        return found

    def write(self, bucket: Bucket, rows: Sequence[np.ndarray]) -> None:
        """Writes each group's new weights of a bucket of one layer, which begin its row of whole pages.

        Raises:
            OffloadError: they could not be written.
        """
        start, end = bucket.column * self.dtype.itemsize, round_up(bucket.size * self.dtype.itemsize, PAGE)
        writes = [
            self._weights.write(self._arrays[bucket.name, group], bucket.row, row[:end], start)
            for group, row in enumerate(rows)
        ]
        for pending in writes:
            finish(pending)

    def set(self, name: str, layer: int, masters: Sequence[np.ndarray]) -> None:
        """Rounds and writes each group's weights of a layer, flat.

        Raises:
            OffloadError: they could not be written.
        """
        for group, master in enumerate(masters):
            number = self._arrays[name, group]
            row = self._weights.buffer(number)
            row.view(self.dtype)[: master.size] = master
            finish(self._weights.write(number, layer, row))

    def set_all(self, name: str, masters: Sequence[np.ndarray]) -> None:
        """`set`, of all layers."""
        of_layers = [master.reshape(self.num_layers, -1) for master in masters]
        for layer in range(self.num_layers):
            self.set(name, layer, [master[layer] for master in of_layers])

    def num_groups(self, name: str) -> int:
        """Different shards of a parameter that this process' devices have."""
        return sum(found == name for found, _ in self._arrays)

    def rows(self, most: int, dtype: np.dtype) -> list[np.ndarray]:
        """Memory for each group's part of a bucket of at most `most` elements, uint8 of whole pages."""
        groups = max(group for _, group in self._arrays) + 1
        return [allocate(round_up(most * dtype.itemsize, PAGE)) for _ in range(groups)]

    def close(self) -> None:
        """Removes the files. May be called again."""
        self._undo.close()
