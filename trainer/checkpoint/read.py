"""Reads arrays of a checkpoint onto any sharding, each process what its devices hold, and verifies every checksum.

Beside what is asked for, it takes the memory of two arrays and of a few blocks. Knows nothing of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Self

import jax
import numpy as np

from trainer.checkpoint.blocks import BLOCK, BlockReader, Workers
from trainer.checkpoint.boxes import Box, Target, box_of, boxes, run_of, scatter
from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.header import Header
from trainer.checkpoint.index import Index, Piece, Saved, from_plain
from trainer.checkpoint.sealed import read_sealed
from trainer.offload.buffers import PAGE, allocate, round_up


def open_arrays(path: Path) -> ArrayReader:
    """Those of the checkpoint in this folder.

    Raises:
        ConfigError: a newer meshwright has written it.
        Damaged: what describes them is not what was written.
    """
    processes = range(Header.read(path).num_processes)
    return ArrayReader(path, from_plain(read_sealed(path / f"{process}.json") for process in processes))


class ArrayReader:
    """The arrays of an index, whose files are in this folder."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self.index = folder, index
        self._files: dict[int, BlockReader] = {}
        self._lock = Lock()
        self._workers = Workers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
        for file in self._files.values():
            file.close()

    def place(
        self, wanted: Mapping[str, jax.ShapeDtypeStruct], dtype: np.dtype | None = None
    ) -> Iterator[tuple[str, jax.Array]]:
        """The arrays, placed as they are wanted, as they are or of this dtype; one is read while another is placed.

        Raises:
            Damaged: one is not what was written.
            OSError: the disk does not give it.
        """
        reading = (self._begin(name, array, dtype) for name, array in wanted.items())
        ahead = next(reading, None)
        while ahead is not None:
            begun, ahead = ahead, next(reading, None)
            yield begun.name, begun.finish()

    def host(self, name: str) -> np.ndarray:
        """The whole array, in host memory. Raises what `place` raises."""
        saved = self.index[name]
        target = _room(Box((0,) * len(saved.shape), saved.shape), saved.dtype)
        for block in self._submit(name, saved, [target]):
            block.result()
        return target.array

    def verify(self, name: str) -> None:
        """Reads the array, and keeps nothing of it. Raises what `place` raises."""
        for block in self._submit(name, self.index[name], None):
            block.result()

    def _begin(self, name: str, wanted: jax.ShapeDtypeStruct, dtype: np.dtype | None) -> _Reading:
        saved, sharding = self.index[name], wanted.sharding
        places = sharding.addressable_devices_indices_map(saved.shape).values()
        here = {box_of(place, saved.shape) for place in places if place is not None}
        targets = [_room(box, dtype or saved.dtype) for box in here]
        return _Reading(name, wanted, targets, self._submit(name, saved, targets))

    def _submit(self, name: str, saved: Saved, targets: Sequence[Target] | None) -> list[Future[None]]:
        """Begins to read what of an array lies in the targets; all of it, for no targets."""
        return [
            self._workers.submit(partial(self._read, name, saved, piece, number, targets))
            for piece in saved.pieces
            for number in _touched(saved, piece, targets)
        ]

    def _read(
        self,
        name: str,
        saved: Saved,
        piece: Piece,
        number: int,
        targets: Sequence[Target] | None,
        buffer: np.ndarray,
    ) -> None:
        """One block of a piece."""
        place, size = number * BLOCK, piece.box.size * saved.dtype.itemsize
        room = _room_for(piece, saved, targets)
        if room is not None:
            buffer = room[place:]
        try:
            data = self._file(piece.process).read(
                piece.offset + place, min(BLOCK, size - place), piece.checksums[number], buffer
            )
        except Damaged as error:
            raise Damaged(f"{name}: {error} ({piece.process}.bin, byte {piece.offset + place} on)") from None
        except OSError as error:
            raise OSError(error.errno, f"reading {name}: {error.strerror}", str(self._folder)) from error
        if targets is not None and room is None:
            scatter(data.view(saved.dtype), piece.box, place // saved.dtype.itemsize, targets)

    def _file(self, process: int) -> BlockReader:
        with self._lock:
            if process not in self._files:
                self._files[process] = BlockReader(self._folder / f"{process}.bin")
            return self._files[process]


class _Reading:
    """An array whose blocks are on their way."""

    def __init__(
        self, name: str, wanted: jax.ShapeDtypeStruct, targets: Sequence[Target], blocks: list[Future[None]]
    ) -> None:
        self.name = name
        self._wanted, self._targets, self._blocks = wanted, targets, blocks

    def finish(self) -> jax.Array:
        for block in self._blocks:
            block.result()
        shape = self._wanted.shape
        arrays = {target.box: target.array for target in self._targets}

        def part(place: tuple[slice, ...] | None) -> np.ndarray:
            assert place is not None, "asked for what another process holds"
            return arrays[box_of(place, shape)]

        placed = jax.make_array_from_callback(shape, self._wanted.sharding, part)
        return placed.block_until_ready()  # the host's copy is free to go


def _room(box: Box, dtype: np.dtype) -> Target:
    """Whole pages: huge ones are touched faster, disks fill them in place, some devices take them without a copy."""
    size = box.size * dtype.itemsize
    pages = allocate(round_up(size, PAGE))
    return Target(box, pages[:size].view(dtype).reshape(box.shape), pages)


def _room_for(piece: Piece, saved: Saved, targets: Sequence[Target] | None) -> np.ndarray | None:
    """The pages of the target that is just this piece, if one is: no two of a sharding overlap."""
    fits = (target for target in targets or () if target.box == piece.box and target.array.dtype == saved.dtype)
    return next((target.pages for target in fits), None)


def _touched(saved: Saved, piece: Piece, targets: Sequence[Target] | None) -> Iterator[int]:
    """The blocks of a piece that hold anything which is wanted."""
    if targets is None:
        yield from range(len(piece.checksums))
        return
    common = [part for target in targets if (part := piece.box.common(target.box)) is not None]
    if not common:
        return
    per_block = BLOCK // saved.dtype.itemsize
    runs = [run_of(part, piece.box) for part in common]
    first, last = min(begin for begin, _ in runs), max(end for _, end in runs)
    for number in range(first // per_block, -(-last // per_block)):
        begin, end = number * per_block, min((number + 1) * per_block, piece.box.size)
        if _meets(piece.box, begin, end, common):
            yield number


def _meets(piece: Box, begin: int, end: int, wanted: Sequence[Box]) -> bool:
    """Whether elements `begin` to `end` of a piece hold anything which is wanted."""
    for part in boxes(piece.shape, begin, end):
        there = Box(tuple(map(sum, zip(part.start, piece.start, strict=True))), part.shape)
        if any(there.common(box) is not None for box in wanted):
            return True
    return False
