"""Records in a file on a local disk: read ahead and written behind, past the page cache, through a few buffers.

Each buffer serves every so many-th record of a sweep. Given back, a record is written from its buffer and the buffer's
next record is read into it, block by block: what is read of the one follows what is written of the other, so nothing
has to be waited for but the record that is to be handed out. As many threads as the disk is to see requests take the
blocks in turn.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np

from trainer.offload.buffers import PAGE, allocate, round_up, starts
from trainer.offload.direct_file import BLOCK, DEPTH, DirectFile
from trainer.offload.lanes import NO_LANES, Lanes, Span, merged
from trainer.offload.tiers import Sweep, checked_order

Blocks = list[Future[list[Span]]]
"""What is under way in one buffer, block by block."""


class Nvme:
    """Records in one file of this process alone, at whole pages.

    Args:
        path: The file; see `DirectFile` for what becomes of it.
        sizes: Bytes of each record.
        buffers: Of the largest record's size. One is in the visitor's hands, the others wait to be so or are on their
            way back.
        block: Bytes of a request, whole pages.
        depth: Requests at a time.
        lanes: Where it is noted how long each record was on its way, in the lanes `read` and `write`.

    Raises:
        ConfigError: the file cannot be had.
    """

    def __init__(
        self,
        path: Path,
        sizes: Sequence[int],
        *,
        buffers: int = 4,
        block: int = BLOCK,
        depth: int = DEPTH,
        direct: bool = True,
        keep: bool = False,
        lanes: Lanes = NO_LANES,
    ) -> None:
        assert sum(sizes) > 0, "a file of nothing"
        assert block % PAGE == 0, "direct I/O moves whole pages"
        self.sizes = tuple(sizes)
        self._starts = starts(self.sizes, PAGE)
        self._buffers = [allocate(round_up(max(sizes), PAGE)) for _ in range(buffers)]
        self._file = DirectFile(path, self._starts[-1], direct=direct, keep=keep)
        self._block, self._depth, self._lanes = block, depth, lanes
        self._sweep: Callable[[], Sweep | None] = lambda: None  # weak: a sweep that its visitor drops is closed at once

    @property
    def host_bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.size for buffer in self._buffers)

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self._file.num_bytes

    def sweep(self, order: Sequence[int], read: bool = True, write: bool = True) -> Sweep:
        """See `Tier`. The first records are read when the first one is asked for."""
        order = checked_order(order, len(self.sizes))
        self._end_sweep()
        sweep = self._visits(order, read, write)
        self._sweep = weakref.ref(sweep)
        return sweep

    def close(self) -> None:
        """Removes the file; see `Tier`."""
        try:
            self._end_sweep()
        finally:
            self._file.close()

    def _end_sweep(self) -> None:
        if (sweep := self._sweep()) is not None:
            sweep.close()

    def _visits(self, order: Sequence[int], read: bool, write: bool) -> Sweep:
        is_over = Event()
        with ThreadPoolExecutor(self._depth, "offload") as threads:

            def exchange(buffer: np.ndarray, old: int | None, new: int | None) -> Blocks:
                old, new = old if write else None, new if read else None
                block_starts = range(0, max(self._extent(old), self._extent(new)), self._block)
                return [threads.submit(self._exchange, buffer, start, old, new, is_over) for start in block_starts]

            turns = itertools.cycle(self._buffers)
            ahead = deque(exchange(buffer, None, new) for buffer, new in zip(self._buffers, order, strict=False))
            to_come = itertools.chain(order[len(self._buffers) :], itertools.repeat(None))
            try:
                for record, buffer, new in zip(order, turns, to_come, strict=False):
                    self._finish(ahead.popleft())
                    view = buffer[: self.sizes[record]]
                    view.flags.writeable = write
                    yield record, view
                    ahead.append(exchange(buffer, record, new))
            except GeneratorExit:  # closed early: what has been given back is still to be written
                pass
            finally:
                is_over.set()
            for blocks in ahead:
                self._finish(blocks)

    def _exchange(self, buffer: np.ndarray, start: int, old: int | None, new: int | None, is_over: Event) -> list[Span]:
        """Writes the block that begins at byte `start` of the old record, reads that of the new one in its place."""
        spans = []
        moves = ("write", self._file.write, old), ("read", self._file.read, None if is_over.is_set() else new)
        for lane, move, record in moves:
            end = min(start + self._block, self._extent(record))
            if record is not None and start < end:
                label, begin = f"record {record}", time.perf_counter()
                move(self._starts[record] + start, buffer[start:end])
                spans.append(Span(lane, label, begin, time.perf_counter()))
        return spans

    def _finish(self, blocks: Blocks) -> None:
        for span in merged([span for block in blocks for span in block.result()]):
            self._lanes.add(span)

    def _extent(self, record: int | None) -> int:
        """Bytes that are moved for a record, or for none."""
        return 0 if record is None else round_up(self.sizes[record], PAGE)
