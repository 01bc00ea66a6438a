"""Gradients of one array of layers, summed over micro-batches in a file: read ahead, written behind.

Backward passes go from the last layer to the first, and each asks for a sum before it gives the new one.
"""

from __future__ import annotations

from trainer.offload.layer_file import LayerFile, Pending, finish
from trainer.offload.read_ahead import ReadAhead, Use

SUMS_HELD = 2
"""Sums that are in host memory at once, of those before: one at work, the other to come."""


class Sums:
    """`adds`: sums are asked for, as there is more than one micro-batch."""

    def __init__(self, file: LayerFile, array: int, adds: bool) -> None:
        self._file, self._array = file, array
        self._before = ReadAhead(file, array, SUMS_HELD) if adds else None
        self._new = file.buffer(array)
        self._written: tuple[int, Pending] = -1, []  # the layer that was given last, which may be on its way

    @property
    def host_bytes(self) -> int:
        """Bytes of the buffers."""
        return self._new.size + (self._before.host_bytes if self._before else 0)

    def give(self, layer: int, use: Use) -> None:
        """Hands the sum of the micro-batches before to `use`.

        Raises:
            OffloadError: it could not be read, or the one given last not be written.
        """
        assert self._before is not None, "there is one micro-batch, and nothing before it"
        written, pending = self._written
        if written in (layer, layer - 1):
            finish(pending)
        self._before.give(layer, range(layer - 1, -1, -1), use)
        self._before.drop(layer)

    def take(self, layer: int, fill: Use) -> None:
        """Has `fill` write the new sum.

        Raises:
            OffloadError: the one before could not be written.
        """
        self.settle()
        fill(self._new)
        self._written = layer, self._file.write(self._array, layer, self._new)

    def settle(self) -> None:
        """Waits until all is written.

        Raises:
            OffloadError: it could not be.
        """
        finish(self._written[1])
