"""What a checkpoint holds: of each array its dtype, its shape, and where in whose file its pieces are.

Each process writes an index of its own pieces; together they are that of the checkpoint. Plain data, checked when it
is read: nothing in it can name a file.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainer.checkpoint.blocks import num_blocks
from trainer.checkpoint.boxes import Box, Shape
from trainer.checkpoint.damage import Damaged


@dataclass(frozen=True)
class Piece:
    """A part of an array, in row-major order and little-endian, in one file."""

    box: Box
    offset: int
    """The byte of the file where it begins."""
    checksums: tuple[int, ...]
    """CRC-32 of each block."""
    process: int
    """Whose file it is in."""


@dataclass(frozen=True)
class Saved:
    """An array of a checkpoint; its pieces cover it, once each."""

    dtype: np.dtype
    shape: Shape
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.size * self.dtype.itemsize

    def blocks(self, piece: Piece) -> int:
        return num_blocks(piece.box.size * self.dtype.itemsize)


Index = Mapping[str, Saved]


def to_plain(index: Index) -> dict[str, Any]:
    """What JSON can hold, of the index of one process."""
    return {
        name: {
            "dtype": str(saved.dtype),
            "shape": saved.shape,
            "pieces": [
                {
                    "start": piece.box.start,
                    "shape": piece.box.shape,
                    "offset": piece.offset,
                    "crc32": piece.checksums,
                }
                for piece in saved.pieces
            ],
        }
        for name, saved in index.items()
    }


def from_plain(of_processes: Iterable[Mapping[str, Any]]) -> dict[str, Saved]:
    """The index of a checkpoint, of those that its processes have written, in order.

    Raises:
        Damaged: they do not fit together.
    """
    pieces: dict[str, list[Piece]] = defaultdict(list)
    kinds: dict[str, tuple[np.dtype, Shape]] = {}
    try:
        for process, plain in enumerate(of_processes):
            for name, of_array in plain.items():
                kind = _dtype(of_array["dtype"]), _sizes(of_array["shape"])
                if kinds.setdefault(name, kind) != kind:
                    raise Damaged(f"{name} is of two kinds")
                pieces[name] += [_piece(one, process) for one in of_array["pieces"]]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Damaged(f"its index is not one ({error!r})") from None
    index = {name: Saved(*kinds[name], tuple(pieces[name])) for name in kinds}
    for name, saved in index.items():
        _require_whole(name, saved)
    return index


def _piece(plain: Mapping[str, Any], process: int) -> Piece:
    box = Box(_sizes(plain["start"]), _sizes(plain["shape"]))
    return Piece(box, int(plain["offset"]), tuple(map(int, plain["crc32"])), process)


def _sizes(plain: Iterable[int]) -> Shape:
    sizes = tuple(map(int, plain))
    if min(sizes, default=0) < 0:
        raise ValueError(f"sizes {sizes}")
    return sizes


def _dtype(name: str) -> np.dtype:
    dtype = jnp.dtype(name)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"dtype {name}")
    return dtype


def _require_whole(name: str, saved: Saved) -> None:
    whole = Box((0,) * len(saved.shape), saved.shape)
    for piece in saved.pieces:
        inside = len(piece.box.start) == len(piece.box.shape) == len(saved.shape) and (
            not piece.box.size or piece.box.common(whole) == piece.box
        )
        if not inside or piece.offset < 0 or saved.blocks(piece) != len(piece.checksums):
            raise Damaged(f"{name} has a piece that does not fit")
    if sum(piece.box.size for piece in saved.pieces) != saved.size:
        raise Damaged(f"{name} is not whole")
