"""Layers in a file: of each of a few arrays one row a layer, at whole pages, read and written by threads of its own.

Knows nothing of what the rows mean, nor of the order in which they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trainer.offload.buffers import PAGE, allocate, round_up
from trainer.offload.direct_file import BLOCK, DEPTH, DirectFile
from trainer.offload.lanes import NO_LANES, Lanes

Pending = list[Future[None]]
"""What is under way, block by block."""


def finish(pending: Pending) -> None:
    """Waits for it.

    Raises:
        OffloadError: the file could not be read or written.
    """
    for block in pending:
        block.result()


class LayerFile:
    """
    Args:
        path: See `DirectFile`.
        sizes: Of each array, the bytes of a row.
        layers: Rows that each of them has.
        lanes: Where it is noted what takes when, in the lanes `read` and `write`.

    Raises:
        ConfigError: the file cannot be had.
    """

    def __init__(
        self, path: Path, sizes: Sequence[int], layers: int, *, direct: bool = True, lanes: Lanes = NO_LANES
    ) -> None:
        self._extents = [round_up(size, PAGE) for size in sizes]
        self._starts = [layers * sum(self._extents[:array]) for array in range(len(sizes) + 1)]
        self._file = DirectFile(path, self._starts[-1], direct=direct)
        self._threads = ThreadPoolExecutor(DEPTH, "offload-layers")
        self._lanes = lanes

    @property
    def num_bytes(self) -> int:
        """Of the file."""
        return self._file.num_bytes

    def buffer(self, array: int) -> np.ndarray:
        """Memory for a row, uint8 of whole pages."""
        return allocate(self._extents[array])

    def read(self, array: int, layer: int, into: np.ndarray, start: int = 0) -> Pending:
        """Begins to read whole pages of a row, from its byte `start` on, which is a page's first."""
        return self._move("read", self._file.read, array, layer, into, start)

    def write(self, array: int, layer: int, data: np.ndarray, start: int = 0) -> Pending:
        """Begins to write whole pages of a row, likewise."""
        return self._move("write", self._file.write, array, layer, data, start)

    def close(self) -> None:
        """Removes the file. May be called again."""
        self._threads.shutdown()
        self._file.close()

    def _move(
        self,
        lane: str,
        move: Callable[[int, np.ndarray], None],
        array: int,
        layer: int,
        data: np.ndarray,
        start: int,
    ) -> Pending:
        place = self._starts[array] + layer * self._extents[array] + start

        def block(first: int) -> None:
            with self._lanes.span(lane, f"layer {layer}"):
                move(place + first, data[first : first + BLOCK])

        return [self._threads.submit(block, first) for first in range(0, data.size, BLOCK)]
