"""Writes this process' pieces of arrays into its file, and says what it has written.

Of the devices that hold the same part of an array one writes it, another one for each array, so that replicas share the
work. Knows nothing of steps, folders or other processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import jax
import numpy as np

from trainer.checkpoint.blocks import BlockWriter, Workers
from trainer.checkpoint.boxes import Box, box_of
from trainer.checkpoint.finite import is_finite, is_in_host_memory, not_finite_on_devices
from trainer.checkpoint.index import Piece, Saved
from trainer.checkpoint.later import Later

Part = tuple[Box, np.ndarray]
"""A part of an array, and host memory that holds it."""
Begun = tuple[Box, int, list[Future[int]]]
"""A part of an array, where it goes in the file, and the checksums of its blocks once they are there."""


class Snapshot:
    """This process' pieces of arrays in host memory; those that are made later are only known by name."""

    def __init__(self, arrays: Mapping[str, jax.Array | Later]) -> None:
        now = {name: array for name, array in arrays.items() if isinstance(array, jax.Array)}
        self.later = {name: array for name, array in arrays.items() if isinstance(array, Later)}
        self.not_finite = set(not_finite_on_devices(now))
        """Arrays with a number that is not finite, as far as this process has seen them; later ones once they are
        written."""
        self.kinds = {name: (np.dtype(array.dtype), array.shape) for name, array in arrays.items()}
        shards = {name: list(_own_shards(array, turn)) for turn, (name, array) in enumerate(now.items())}
        for own in shards.values():
            for _, shard in own:
                shard.copy_to_host_async()
        self.parts: dict[str, list[Part]] = {
            name: [(box, np.asarray(shard)) for box, shard in own] for name, own in shards.items()
        }
        self.not_finite |= {name for name in now if is_in_host_memory(now[name]) and not _are_finite(self.parts[name])}
        del shards
        for array in now.values():
            array.delete()

    @property
    def num_bytes(self) -> int:
        """Of what is in host memory."""
        return sum(data.nbytes for parts in self.parts.values() for _, data in parts)


class ArrayWriter:
    """A file of this process, as it is written.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, process: int) -> None:
        self._workers = Workers()
        self._file = BlockWriter(path, self._workers)
        self._process = process
        self._kinds: Mapping[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._pieces: dict[str, list[Begun]] = {}

    def write_later(self, snapshot: Snapshot) -> None:
        """Makes and writes one after another what is made later.

        Raises:
            OSError: something could not be made or written.
        """
        for turn, (name, later) in enumerate(snapshot.later.items()):
            array = later.make()
            parts = [(box, np.asarray(shard)) for box, shard in _own_shards(array, turn)]
            begun = self._add(name, parts)
            if not _are_finite(parts):
                snapshot.not_finite.add(name)
            for _, _, blocks in begun:
                for block in blocks:
                    block.result()
            array.delete()

    def write(self, snapshot: Snapshot) -> None:
        """Begins to write what is in host memory, each block of which is free once it is written.

        Raises:
            OSError: there is no room.
        """
        self._kinds = snapshot.kinds
        self._file.expect(data.nbytes for parts in snapshot.parts.values() for _, data in parts)
        while snapshot.parts:
            self._add(*snapshot.parts.popitem())

    def _add(self, name: str, parts: list[Part]) -> list[Begun]:
        self._pieces[name] = [(box, *self._file.add(_bytes(data))) for box, data in parts]
        return self._pieces[name]

    def finish(self) -> dict[str, Saved]:
        """The index of the file, once all of it is on the disk.

        Raises:
            OSError: it could not be written.
        """
        index = {name: Saved(*self._kinds[name], self._written(pieces)) for name, pieces in self._pieces.items()}
        self._workers.close()
        self._file.close()
        return index

    def _written(self, pieces: list[Begun]) -> tuple[Piece, ...]:
        return tuple(
            Piece(box, offset, tuple(block.result() for block in blocks), self._process)
            for box, offset, blocks in pieces
        )

    def abandon(self) -> None:
        """What has not been written will not be."""
        self._workers.close()
        with contextlib.suppress(OSError):
            self._file.close()


def _are_finite(parts: Iterable[Part]) -> bool:
    return all(is_finite(data) for _, data in parts)


def _own_shards(array: jax.Array, turn: int) -> Iterator[tuple[Box, jax.Array]]:
    """The parts that this process writes; `turn` says whose turn it is among those that hold the same."""
    holders: dict[Box, list[jax.Device]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders.setdefault(box_of(index, array.shape), []).append(device)
    for shard in array.addressable_shards:
        box = box_of(shard.index, array.shape)
        if holders[box][turn % len(holders[box])] == shard.device:
            yield box, shard.data


def _bytes(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
