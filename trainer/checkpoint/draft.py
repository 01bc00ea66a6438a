"""A checkpoint in the making: a folder beside the finished ones, renamed when all processes have written all of it.

    STEP.TOKEN.writing/N.bin, N.json   the pieces of process N, and their index once they are on the disk
                       N.failed        instead of N.json: why process N could not
                       checkpoint.json what process 0 adds last
    STEP/                              the same folder, committed

Processes learn of one another by these files alone, so that training's collectives are not disturbed, and so that all
of them notice where one fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.checkpoint.header import HEADER, Header
from trainer.checkpoint.index import to_plain
from trainer.checkpoint.sealed import write_sealed
from trainer.checkpoint.write import ArrayWriter, Snapshot

WRITING, DELETING = ".writing", ".deleting"
TIMEOUT = 3 * 3600.0
"""Seconds that processes wait for one another; a large state on a slow disk takes its time."""
POLL = 0.02, 1.0
"""Seconds between two looks at the folder, at first and at most."""


class Draft:
    """This process' part in making one. `token` is the same in all processes, and no other draft's."""

    def __init__(self, folder: Path, step: int, token: str, process: int, num_processes: int) -> None:
        self._folder, self._step = folder, step
        self._path = folder / f"{step}.{token}{WRITING}"
        self._process, self._num_processes = process, num_processes
        self._writer: ArrayWriter | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """Writes what is made later.

        Raises:
            OSError: there is no room, or something could not be made or written.
        """
        with self._telling_others():
            self._path.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._path).free
            if snapshot.num_bytes > free:  # not to be tried: it would fill the disk for others too
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._writer = ArrayWriter(self._path / f"{self._process}.bin", self._process)
            self._writer.write_later(snapshot)

    def complete(self, snapshot: Snapshot, meta: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Writes all the rest, waits until all processes have done so, and commits it.

        Raises:
            OSError: this process or another one failed, or was not heard of.
        """
        assert self._writer is not None
        with self._telling_others():
            self._writer.write(snapshot)
            index = self._writer.finish()
            write_sealed(self._path / f"{self._process}.json", to_plain(index))
            if self._process != 0:
                self._wait_until(lambda: (self._folder / str(self._step)).exists())
                return
            others = [self._path / f"{process}.json" for process in range(1, self._num_processes)]
            self._wait_until(lambda: all(path.exists() for path in others))
            header = Header.of(self._step, self._num_processes, meta, metrics)
            write_sealed(self._path / HEADER, header.plain())
            sync(self._path)
            self._path.rename(self._folder / str(self._step))
            sync(self._folder)

    def abandon(self) -> None:
        """Instead of `complete`, where all processes do so."""
        self._remove_own()
        if self._process == 0:
            shutil.rmtree(self._path, ignore_errors=True)

    def _remove_own(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
        with contextlib.suppress(OSError):
            (self._path / f"{self._process}.bin").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _telling_others(self) -> Iterator[None]:
        """That this process has failed, where it does."""
        try:
            yield
        except BaseException as error:
            self._remove_own()  # first: there may be no room for anything else
            with contextlib.suppress(OSError):
                (self._path / f"{self._process}.failed").write_text(
                    f"process {self._process}: {error}", encoding="utf-8"
                )
            raise

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        end, pause = time.monotonic() + TIMEOUT, POLL[0]
        while not is_done():
            for path in self._path.glob("*.failed"):
                raise OSError(path.read_text(encoding="utf-8"))
            if time.monotonic() > end:
                raise OSError(f"not all processes had written their part after {TIMEOUT:.0f} s")
            time.sleep(pause)
            pause = min(1.5 * pause, POLL[1])


def sync(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove(path: Path) -> None:
    """Removes a finished checkpoint, which from the first moment on is none."""
    going = path.with_name(path.name + DELETING)
    path.rename(going)
    shutil.rmtree(going)


def remove_leftovers(folder: Path) -> None:
    """What processes that were killed have left; no other draft may be in the making."""
    for ending in (WRITING, DELETING):
        for path in folder.glob(f"*{ending}"):
            shutil.rmtree(path, ignore_errors=True)
