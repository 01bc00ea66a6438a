"""Files of blocks with a checksum each, past the page cache where the file system lets us.

A piece is a run of bytes that begins at a page; it is cut into blocks of `BLOCK` bytes, the last one shorter. A few
threads move blocks through a buffer each: that is all the memory it takes. Knows nothing of arrays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

import numpy as np

from trainer.checkpoint.damage import Damaged
from trainer.offload.buffers import PAGE, allocate, round_up

BLOCK = 16 * 2**20
"""Bytes; the size of any dtype divides it."""
THREADS = 4
T = TypeVar("T")


def num_blocks(num_bytes: int) -> int:
    """Of a piece."""
    return -(-num_bytes // BLOCK)


class Workers:
    """Threads with a buffer of a block each. They serve to the very end of the interpreter, as a pool would not."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[np.ndarray], None] | None] = SimpleQueue()
        self._threads = [Thread(target=self._serve, name="checkpoint", daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """What has not begun never will; the buffers are given back."""
        while not self._work.empty():
            with contextlib.suppress(Empty):
                self._work.get_nowait()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, work: Callable[[np.ndarray], T]) -> Future[T]:
        """Calls `work` with a buffer, in a thread."""
        future: Future[T] = Future()
        self._work.put(lambda buffer: settle(future, lambda: work(buffer)))
        return future

    def _serve(self) -> None:
        buffer = allocate(BLOCK)
        while (work := self._work.get()) is not None:
            work(buffer)
            del work  # and what it has written


def settle(future: Future[T], work: Callable[[], T]) -> None:
    """Gives the future what the work returns, or raises."""
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


class BlockWriter:
    """A new file; pieces follow one another.

    Raises:
        OSError: it is there already, or cannot be made.
    """

    def __init__(self, path: Path, workers: Workers) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        self._workers = workers
        self.num_bytes = self._length = 0
        _go_past_the_cache(self._file)

    def expect(self, sizes: Iterable[int]) -> None:
        """Makes the file as long as it will be with pieces of so many bytes, which then need not wait for others."""
        self._lengthen(self.num_bytes + sum(round_up(size, PAGE) for size in sizes))

    def _lengthen(self, num_bytes: int) -> None:
        os.ftruncate(self._file, num_bytes)  # threads whose writes lengthened it would wait for one another
        self._length = num_bytes

    def add(self, data: np.ndarray) -> tuple[int, list[Future[int]]]:
        """Begins to write a piece: where it begins, and the checksums of its blocks once they are written.

        `data` is uint8 [bytes], and must not change before. The futures raise OSError where that fails.
        """
        offset, self.num_bytes = self.num_bytes, self.num_bytes + round_up(data.size, PAGE)
        if self.num_bytes > self._length:
            self._lengthen(self.num_bytes)
        parts = [data[start : start + BLOCK] for start in range(0, data.size, BLOCK)]
        return offset, [
            self._workers.submit(self._writing(part, offset + number * BLOCK)) for number, part in enumerate(parts)
        ]

    def _writing(self, data: np.ndarray, offset: int) -> Callable[[np.ndarray], int]:
        def write(buffer: np.ndarray) -> int:
            end = round_up(data.size, PAGE)
            buffer[: data.size] = data
            buffer[data.size : end] = 0
            done, view = 0, buffer.data[:end]
            while done < end:
                done += os.pwrite(self._file, view[done:], offset + done)
            return zlib.crc32(view[: data.size])

        return write

    def close(self) -> None:
        """Waits until all that was written is on the disk; to be called once the futures are done, at most once."""
        file, self._file = self._file, -1
        try:
            os.fsync(file)
        finally:
            os.close(file)


class BlockReader:
    """A file that `BlockWriter` has made.

    Raises:
        Damaged: it is not there.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise Damaged(f"{path.name} is missing") from None
        _go_past_the_cache(self._file)

    def read(self, offset: int, num_bytes: int, checksum: int, buffer: np.ndarray) -> np.ndarray:
        """The bytes of a block, which are in the buffer.

        Raises:
            Damaged: the file is too short, or these are not the bytes that were written.
            OSError: the disk does not give them.
        """
        done, view = 0, buffer.data[: round_up(num_bytes, PAGE)]
        while done < num_bytes:
            count = os.preadv(self._file, [view[done:]], offset + done)
            if count == 0:
                raise Damaged("it is cut short")
            done += count
        if zlib.crc32(view[:num_bytes]) != checksum:
            raise Damaged("its checksum is another")
        return buffer[:num_bytes]

    def close(self) -> None:
        os.close(self._file)


def _go_past_the_cache(file: int) -> None:
    """Where that is possible: of what is read or written once, a cache only takes memory and time."""
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
