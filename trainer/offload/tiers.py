"""Where offloaded state lives: numbered records of bytes, visited in turn and changed in place.

A tier knows neither what its records hold nor when they are visited. In host memory a visit costs nothing; what lives
on a disk (`trainer.offload.nvme`) is read ahead and written behind.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

import numpy as np

from trainer.offload.buffers import allocate, starts

ALIGNMENT = 64
"""Bytes: what XLA's CPU backend asks of memory that it is to use in place."""

Sweep = Generator[tuple[int, np.ndarray], None, None]
"""Each visited record with its number, uint8 [size]."""


class Tier(Protocol):
    """Records of fixed sizes, numbered from 0, that hold zeros at first."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each record."""

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that the tier takes, however many records there are."""

    def sweep(self, order: Sequence[int], read: bool = True, write: bool = True) -> Sweep:
        """Visits records, each at most once, in the given order.

        A record's array may be changed until the next one is asked for, and not be used after that. Without `write` it
        is read-only. Without `read` its content is left open: the visitor fills it. When the sweep ends, everything is
        where it belongs. Closed early (`contextlib.closing` does so whatever happens), it leaves the records that it
        has taken back as they are now, and those not yet visited as they were; of the one in the visitor's hands either
        may be left. One sweep at a time: once the next has begun, the one before is over.

        Raises:
            ValueError: no such order.
            OffloadError: what is stored cannot be read or written; raised at the latest as the sweep ends or is closed.
                A record may then be half written.
        """

    def close(self) -> None:
        """Gives everything back; the records are gone. May be called again."""


def checked_order(order: Sequence[int], num_records: int) -> list[int]:
    """The order as a list.

    Raises:
        ValueError: it names a record twice, or one that is not there.
    """
    if len(set(order)) < len(order) or not all(0 <= record < num_records for record in order):
        raise ValueError(f"{list(order)} does not visit each of {num_records} records at most once")
    return list(order)


class Memory:
    """Records in host memory."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        *self._starts, self.host_bytes = starts(self.sizes, ALIGNMENT)
        self._memory: np.ndarray | None = allocate(self.host_bytes)

    def sweep(self, order: Sequence[int], read: bool = True, write: bool = True) -> Sweep:
        """See `Tier`. There is nothing to read: without `read` a record still holds what it held."""
        return self._visits(checked_order(order, len(self.sizes)), write)

    def _visits(self, order: Sequence[int], write: bool) -> Sweep:
        for record in order:
            assert self._memory is not None, "swept after close"
            start = self._starts[record]
            view = self._memory[start : start + self.sizes[record]]
            view.flags.writeable = write
            yield record, view

    def close(self) -> None:
        self._memory = None
