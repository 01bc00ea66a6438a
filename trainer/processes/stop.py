"""After which step all processes stop, when some of them were asked to. Knows nothing of signals' handlers.

Hosts run ahead of their devices by different numbers of steps, and each step needs all processes. So the first who is
asked tells the others; a thread of each promises how far it will go, even while the process waits for its devices; and
all stop after the step that is the furthest.
"""

from __future__ import annotations

import signal
import threading

from trainer.processes.store import Store
from trainer.processes.watch import NEWS


class OwnStop:
    """Of a process that is alone."""

    def after(self, step: int, asked: signal.Signals | None) -> signal.Signals | None:
        """As `AgreedStop.after`."""
        return asked


class AgreedStop:
    """Of one training loop.

    Args:
        name: of it in the store.
        first: steps finished before it begins.
    """

    def __init__(self, store: Store, process: int, processes: int, name: str, first: int) -> None:
        self._store, self._process, self._processes = store, process, processes
        self._wanted, self._agreed, self._promises = name, f"{name} after", f"{name} promises"
        self._changed = threading.Condition()
        self._allowed = first + 1
        """The step that this process may be at."""
        self._signal: signal.Signals | None = None
        self._has_asked = False
        self._last: int | None = None

    def after(self, step: int, asked: signal.Signals | None) -> signal.Signals | None:
        """After each step, with what this process was asked: the signal to stop for, where the step is the last."""
        if asked is not None and not self._has_asked:
            self._has_asked = True
            self._store.put(f"{NEWS}/{self._wanted}", str(int(asked)))
        with self._changed:
            if self._signal is None:
                self._allowed = step + 1
                return None
            self._changed.wait_for(lambda: self._last is not None)
            assert self._last is not None
            return self._signal if step >= self._last else None

    def hear(self, news: dict[str, str]) -> None:
        """The news, by the thread that watches."""
        if self._wanted in news and self._signal is None:
            with self._changed:
                self._signal = signal.Signals(int(news[self._wanted]))
            self._store.put(f"{self._promises}/{self._process}", str(self._allowed))
        if self._process == 0 and self._signal is not None and self._agreed not in news:
            promises = self._store.folder(self._promises)
            if len(promises) == self._processes:
                self._store.put(f"{NEWS}/{self._agreed}", str(max(map(int, promises.values()))))
        if self._agreed in news:
            with self._changed:
                self._last = int(news[self._agreed])
                self._changed.notify_all()
