"""Rows of one array of a layer file, read before they are asked for, through a few buffers.

Who asks is several devices at once, each at its own pace. None waits for another but while that one takes its copy:
a row that is no longer there is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock

import numpy as np

from trainer.offload.layer_file import LayerFile, Pending, finish

Use = Callable[[np.ndarray], None]
"""What is done with a row, uint8 of whole pages, which is not to be kept."""


@dataclass
class _Held:
    """A buffer, and the row that is in it or on its way there."""

    buffer: np.ndarray
    layer: int | None = None
    pending: Pending | None = None


class ReadAhead:
    """Row by row of one array, through `buffers` buffers."""

    def __init__(self, file: LayerFile, array: int, buffers: int) -> None:
        self._file, self._array = file, array
        self._held = [_Held(file.buffer(array)) for _ in range(buffers)]
        self._lock = Lock()

    @property
    def host_bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(held.buffer.size for held in self._held)

    def give(self, layer: int, then: Iterable[int], use: Use) -> None:
        """Hands a row to `use`, and has those read that come `then`, as many as there are buffers for.

        Raises:
            OffloadError: the row could not be read.
        """
        with self._lock:
            wanted = [layer, *islice(then, len(self._held) - 1)]
            self._begin(wanted)
            (held,) = (held for held in self._held if held.layer == layer)
            finish(held.pending or [])
            use(held.buffer)

    def drop(self, layer: int | None = None) -> None:
        """Forgets a row, or all that are held: the file will have others there."""
        with self._lock:
            for held in self._held:
                if layer in (None, held.layer):
                    finish(held.pending or [])
                    held.layer = held.pending = None

    def begin(self, layers: Sequence[int]) -> None:
        """Has these rows read, as many as there are buffers for."""
        with self._lock:
            self._begin(layers[: len(self._held)])

    def _begin(self, wanted: Sequence[int]) -> None:
        free = (held for held in self._held if held.layer not in wanted)
        there = {held.layer for held in self._held}
        for layer in wanted:
            if layer not in there:
                held = next(free)
                finish(held.pending or [])  # that nobody has asked for in the end
                held.layer, held.pending = layer, self._file.read(self._array, layer, held.buffer)


class Course:
    """Guesses which layers come after one, from those before: up, and then down again or up from the first."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._last, self._step = 0, 1

    def after(self, layer: int, turns: bool) -> Iterator[int]:
        """The others in the order in which they will come; `turns`: at the last layer, and not back to the first."""
        if layer != self._last:
            self._step = 1 if layer > self._last else -1
        self._last = layer
        seen, step = {layer}, self._step
        while len(seen) < self._layers:
            if layer == self._layers - 1 and step > 0:
                layer, step = (layer, -1) if turns else (-1, 1)
            elif layer == 0 and step < 0:
                step = 1
            layer += step
            if layer not in seen:
                seen.add(layer)
                yield layer
