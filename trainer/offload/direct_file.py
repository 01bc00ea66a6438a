"""A file of fixed size that one process reads and writes past the page cache, in whole pages.

What can go wrong is noticed as it is made: no room, another run that has it, a file system without direct I/O. It knows
nothing of records.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trainer.errors import ConfigError, OffloadError
from trainer.file_lock import holder, try_to_lock
from trainer.offload.buffers import PAGE
from trainer.units import binary

Move = Callable[[int, list[memoryview], int], int]
"""`os.preadv` or `os.pwritev`: from or to a file, which buffers, where; gives the bytes moved."""

BLOCK, DEPTH = 4 * 2**20, 16
"""Bytes of a request, and requests at a time, that suit a disk. With small ones, Python is slower than it."""
_AFTER_A_FAILURE = "check that disk (see dmesg), and run again: it goes on from the newest checkpoint"


class DirectFile:
    """Zeros at first, whatever a file of that name has held; removed by `close`, unless it is to be kept.

    Without `direct`, what is read and written goes through the page cache.

    Raises:
        ConfigError: the file cannot be had.
    """

    def __init__(self, path: Path, num_bytes: int, *, direct: bool = True, keep: bool = False) -> None:
        self.path, self.num_bytes = path, num_bytes
        with contextlib.ExitStack() as undo:
            self._file = _open(path)
            undo.callback(os.close, self._file)
            _lock(self._file, path)
            if not keep:
                undo.callback(path.unlink, missing_ok=True)  # before it is closed, and with that unlocked
            _reserve(self._file, path, num_bytes)
            if direct:
                _go_past_the_cache(self._file, path)
            self._undo = undo.pop_all()

    def read(self, offset: int, into: np.ndarray) -> None:
        """Fills `into`, uint8 of whole pages, from `offset` on.

        Raises:
            OffloadError: it could not be read.
        """
        self._move(os.preadv, "read", offset, into)

    def write(self, offset: int, data: np.ndarray) -> None:
        """Writes `data`, uint8 of whole pages, from `offset` on.

        Raises:
            OffloadError: it could not be written.
        """
        self._move(os.pwritev, "written", offset, data)

    def close(self) -> None:
        """May be called again."""
        self._undo.close()

    def _move(self, call: Move, done_to: str, offset: int, data: np.ndarray) -> None:
        done, view = 0, data.data
        while done < data.size:
            try:
                count = call(self._file, [view[done:]], offset + done)
            except OSError as error:
                raise self._failed(done_to, offset + done, str(error.strerror)) from error
            if count < PAGE:
                raise self._failed(done_to, offset + done, "no more than part of a page is moved")
            done += count - count % PAGE  # direct I/O can go on only from a whole page

    def _failed(self, done_to: str, offset: int, reason: str) -> OffloadError:
        where = f"{self.path}, where the training state is kept, could not be {done_to} at byte {offset:,}"
        return OffloadError(f"{where} ({reason}); {_AFTER_A_FAILURE}")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        advice = "name a folder on a local disk that is there and that you may write"
        raise ConfigError(f"{path} cannot be opened for offloading ({error.strerror}); {advice}") from None


def _lock(file: int, path: Path) -> None:
    """Until the file is closed, or the process dies."""
    try:
        is_ours = try_to_lock(file)
    except OSError as error:
        advice = "name a folder on a local disk"
        raise ConfigError(f"{path} cannot be locked on this file system ({error.strerror}); {advice}") from None
    if not is_ours:
        advice = "wait for it to end, or name another folder, or another run.name"
        raise ConfigError(f"{path} is in use by {holder(file)}, which offloads there; {advice}")


def _reserve(file: int, path: Path, num_bytes: int) -> None:
    """Room on the disk for all of the file, so that it is full now or never."""
    os.ftruncate(file, 0)
    free = shutil.disk_usage(path.parent).free
    try:
        if num_bytes > free:  # not to be tried: it would fill the disk for a moment
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        there = f"{binary(free)} are free"
        advice = "make room, or name a folder on another disk"
        if error.errno == errno.EFBIG:
            there, advice = _largest_file()
        raise ConfigError(f"{path} needs {binary(num_bytes)}, and {there} ({error.strerror}); {advice}") from None


def _largest_file() -> tuple[str, str]:
    """What keeps a file from being larger, and what to do."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return "its file system has no files so large", "name a folder on another, such as one with XFS"
    return f"a file may have {binary(limit)}", "raise that limit, `ulimit -f`, or train with more processes"


def _go_past_the_cache(file: int, path: Path) -> None:
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
    except OSError as error:
        why = f"this file system has no direct I/O ({error.strerror})"
        raise ConfigError(
            f"{path}: {why}; name a folder on a local disk, such as one with ext4 or XFS, or go through the page cache "
            "with offload.direct_io=false"
        ) from None
