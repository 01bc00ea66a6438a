"""Folders that are made once and then only read, named by what they were made from.

A folder appears under its name whole or not at all, so a run that is killed leaves nothing that is believed.
Knows nothing of what is inside.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from trainer.errors import ConfigError
from trainer.file_lock import try_to_lock

Say = Callable[[str], None]


def cached_folder(root: Path, key: str, build: Callable[[Path], None], say: Say) -> Path:
    """The folder `root/key`; unless it is there, `build` fills a new one, which then takes that name.

    `say` is told when another process is at it and has to be waited for.

    Raises:
      ConfigError: `root` cannot be written, or its disk is full.
    """
    folder = root / key
    if folder.is_dir():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(root / f"{key}.lock", say) as alone:
            if alone:
                _remove_leftovers(root, key)
            if not folder.is_dir():
                _build_and_name(folder, build)
    except OSError as error:
        raise ConfigError(
            f"data.cache: {root} cannot be written ({error.strerror or error}); make room, or set "
            "data.cache to another folder"
        ) from error
    return folder


def _build_and_name(folder: Path, build: Callable[[Path], None]) -> None:
    with TemporaryDirectory(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        build(new)
        for file in new.iterdir():
            _flush(file)
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise


def _flush(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def _remove_leftovers(root: Path, key: str) -> None:
    for leftover in root.glob(f"{key}.*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _one_at_a_time(lock: Path, say: Say) -> Iterator[bool]:
    """True while no other process is inside; False where files cannot be locked, so work is done twice."""
    with lock.open("w") as handle:
        yield _lock(handle, say)


def _lock(handle: IO[str], say: Say) -> bool:
    try:
        if not try_to_lock(handle.fileno()):
            say(f"data: waiting for the process that holds {handle.name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
