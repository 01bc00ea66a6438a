"""The right to write into a run's folder: one process has it at a time, and in that process one trainer, the newest.

A process leaves the folder free when it ends, however it does. Who makes another trainer of a run in the same process,
as when a notebook's cell is run again, goes on with that one; the older is refused from then on. Reading needs no lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

from trainer.errors import ConfigError
from trainer.file_lock import holder, try_to_lock, try_to_share
from trainer.lines import record_of

IN_USE = ".in-use.tmp"
"""In the folder: locked by the process that trains in it, which writes its last sign of life there."""
_ROOM = 512
"""Bytes of a sign: the next covers the one before."""

_HELD: dict[tuple[int, Path], FolderLock] = {}
"""Those that are held, by process (a forked one holds nothing) and folder."""


class Sign(NamedTuple):
    """How far training had come, and when: whoever is killed has told nothing else of it."""

    step: int
    time: float
    """Unix seconds."""
    host: str


class FolderLock:
    """The right of one trainer to write into its run's folder; not held until `take`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_training = False
        """Nobody in this process may take it away."""
        self._file: int | None = None
        self._place: tuple[int, Path] | None = None
        self._lost: str | None = None

    def require(self) -> None:
        """Raises ConfigError where it is closed, or another trainer has taken it."""
        if self._lost is not None:
            raise ConfigError(f"{self._lost}; make a new Trainer, which goes on from the newest checkpoint")

    def take(self) -> None:
        """Has it from here on, until `close`; the folder is made.

        Raises:
            ConfigError: another process has it, or another trainer that trains just now; it was lost before; or the
                folder cannot be written.
        """
        self.require()
        if self._file is not None:
            return
        place = os.getpid(), self.folder.resolve()
        if (older := _HELD.get(place)) is not None:
            if older.is_training:
                raise ConfigError(f"another Trainer of this process trains in {self.folder}; wait for it")
            older.close(f"another Trainer of this process has taken {self.folder} since")
        self._file, self._place = _locked(self.folder), place
        _HELD[place] = self

    def sign(self, step: int) -> None:
        """Leaves a sign of life after `step`, if it is this process that has the folder."""
        if self._file is not None:
            sign = json.dumps(Sign(step, time.time(), platform.node())._asdict())
            with contextlib.suppress(OSError):  # it is worth no run
                os.pwrite(self._file, sign.ljust(_ROOM).encode(), 0)

    def close(self, why: str | None = None) -> None:
        """Leaves the folder to others, for good."""
        self._lost = self._lost or why or "this Trainer is closed"
        if self._file is not None and self._place is not None:
            os.close(self._file)
            _HELD.pop(self._place, None)
        self._file = None


def last_sign(folder: Path) -> Sign | None:
    """The last sign of life of whoever trains or trained in a folder; None where none can be read."""
    try:
        record = record_of((folder / IN_USE).read_bytes()) or {}
        return Sign(int(record["step"]), float(record["time"]), str(record["host"]))
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return None


def is_held(folder: Path) -> bool | None:
    """Whether a process of this machine has a folder now; None where that cannot be known."""
    try:
        file = os.open(folder / IN_USE, os.O_RDONLY)
    except OSError:
        return None
    try:
        return not try_to_share(file)
    except OSError:
        return None
    finally:
        os.close(file)


def _locked(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ConfigError(
            f"run.dir={folder} cannot be locked ({error.strerror}); give another run.dir, or make it writable"
        ) from error
    with contextlib.suppress(OSError):  # a file system without locks
        if not try_to_lock(file):
            who = holder(file)
            os.close(file)
            raise ConfigError(
                f"{folder} is in use: {who} trains in it; wait for it, stop it (in Python: trainer.close()), or give "
                "another run.name or run.dir"
            )
    return file
