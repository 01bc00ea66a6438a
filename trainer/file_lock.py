"""A file that one process has at a time: until it closes it, or dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def try_to_lock(file: int) -> bool:
    """Whether this process has it now; another one may.

    Raises:
        OSError: the file system has no locks.
    """
    return _try(file, fcntl.LOCK_EX)


def try_to_share(file: int) -> bool:
    """Whether no process has it for itself; until the file is closed, none may. Raises as `try_to_lock`."""
    return _try(file, fcntl.LOCK_SH)


def _try(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(file: int) -> str:
    """Who has it, as far as the kernel tells."""
    status = os.fstat(file)
    key = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():  # 1: FLOCK ADVISORY WRITE pid device:inode 0 EOF
            if key in (fields := line.split()):
                return f"process {fields[fields.index(key) - 1]}"
    return "another process"
