"""Global batches as pure functions of the step, and a thread that makes them ahead of time.

A process reads only its own rows, and every process agrees on all of them without a word. Knows nothing of
devices or meshes. `B` is the global batch, `S` the sequence length.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from trainer.data.order import in_order
from trainer.data.packing import PADDING, PackedSequences

Batch = dict[str, np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True)
class TrainBatches:
    """Shuffled windows, epoch after epoch, without end."""

    packed: PackedSequences
    seed: int
    global_batch: int

    def batch(self, step: int) -> Batch:
        """The fields of PackedSequences as [B, S], and `samples`, uint32 [B]: see `rows`."""
        return self.rows(step, 0, self.global_batch)

    def rows(self, step: int, low: int, high: int) -> Batch:
        """Rows low up to high of the batch of `step`.

        `samples` is the row's place in the global stream of samples, modulo 2**32: a dropout key that
        depends on neither mesh nor micro-batch.
        """
        before = int(step) * self.global_batch
        windows = in_order(self.seed, before + low, before + high, len(self.packed))
        place = before + np.arange(low, high, dtype=np.int64)
        return self.packed.windows(windows) | {"samples": _samples(place)}


@dataclass(frozen=True)
class HeldOutBatches:
    """The first windows in their order, each once. Where they run out, rows of the last batch are padding."""

    packed: PackedSequences
    global_batch: int
    most: int
    """No more batches than this."""

    def __len__(self) -> int:
        return min(self.most, -(-len(self.packed) // self.global_batch))

    def batch(self, index: int) -> Batch:
        """As TrainBatches.batch."""
        return self.rows(index, 0, self.global_batch)

    def rows(self, index: int, low: int, high: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"held-out batch {index} of {len(self)}")
        place = index * self.global_batch + np.arange(low, high, dtype=np.int64)
        windows = np.where(place < len(self.packed), place, PADDING)
        return self.packed.windows(windows) | {"samples": _samples(place)}


def prefetch(get: Callable[[int], T], start: int, stop: int, depth: int) -> Generator[T, None, None]:
    """Yields get(start), ..., get(stop - 1), made by a thread that keeps up to `depth` ready.

    What `get` raises is raised here, in its turn. Closing the generator ends the thread.
    """
    ready: queue.SimpleQueue[T | _Failure] = queue.SimpleQueue()
    room = threading.Semaphore(depth)
    closed = threading.Event()

    def work() -> None:
        try:
            for step in range(start, stop):
                room.acquire()
                if closed.is_set():
                    return
                ready.put(get(step))
        except BaseException as error:  # the consumer's to handle, whatever it is
            ready.put(_Failure(error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        for _ in range(start, stop):
            item = ready.get()
            if isinstance(item, _Failure):
                raise item.error
            room.release()
            yield item
    finally:
        closed.set()
        room.release()
        thread.join()


class Ahead(Generic[T]):
    """Batches of the steps that are asked for, made ahead as long as they are asked for one after the other."""

    def __init__(self, get: Callable[[int], T], depth: int) -> None:
        self._get = get
        self._depth = depth
        self._stream: Generator[T, None, None] | None = None
        self._expected: tuple[int, int] | None = None
        """What the stream gives next."""

    def of(self, step: int, stop: int, course: int = 0) -> T:
        """get(step); meanwhile, those up to `stop` are made. What was made for another `course` is not given."""
        if self._stream is None or self._expected != (course, step):
            self.close()
            self._stream = prefetch(self._get, step, stop, self._depth)
        self._expected = None  # unless it comes
        batch = next(self._stream)
        self._expected = course, step + 1
        return batch

    def close(self) -> None:
        """Ends the thread."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


@dataclass(frozen=True)
class _Failure:
    error: BaseException


def _samples(place: np.ndarray) -> np.ndarray:
    return (place & 0xFFFF_FFFF).astype(np.uint32)
