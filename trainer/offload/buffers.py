"""Host memory that disks and devices read and write in place: whole pages, huge ones where the kernel gives them.

Knows nothing of what the bytes mean, nor of files.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

PAGE = 4096
"""Bytes that direct I/O moves at least: lengths, and places in files and in memory, are multiples of it."""


def round_up(num_bytes: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-num_bytes // unit) * unit


def starts(sizes: Sequence[int], unit: int) -> list[int]:
    """Where records of these sizes begin, each at a multiple of `unit`; the last entry is where they end."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + round_up(size, unit))
    return places


def allocate(num_bytes: int) -> np.ndarray:
    """Zeros, uint8 [num_bytes], that begin at a page; resident only as they are touched, given back with the array.

    Raises:
        MemoryError: the system has no such room.
    """
    try:
        memory = mmap.mmap(-1, round_up(max(num_bytes, 1), PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes:,} bytes of host memory: {error.strerror}") from None
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, num_bytes)
