"""Ctrl-C and SIGTERM as a wish: finish the step, save, stop. Said again, it is an order: end at once.

Python's handlers wait for the main thread, and that may wait for devices that never answer. So a thread hears signals
as they come: it answers, and carries out an order that nobody else does.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from trainer.commands.exit_codes import SIGNALLED
from trainer.streams import say_at_the_end

ANSWER = "finishing the step, then saving; Ctrl-C stops at once, without"
WISHES = (signal.SIGINT, signal.SIGTERM)
TWICE = 5.0
"""Seconds within which another SIGTERM is the same one: schedulers send it to a process and to who started it."""
GRACE = 5.0
"""Seconds in which the main thread may carry out an order by itself."""


class StopRequest:
    """`with` it around a loop that looks at `signal` between steps; outside the main thread it never sees one.

    `heard` is told of the wish at once, by a thread of its own.
    """

    def __init__(self, heard: Callable[[signal.Signals], None]) -> None:
        self._heard = heard
        self.signal: signal.Signals | None = None
        self.since: float | None = None
        """When it came, in seconds of `time.monotonic`."""
        self._before: dict[signal.Signals, Any] = {}
        self._is_over = threading.Event()

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.since is not None and _is_order(number, self.since):
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal, self.since = signal.Signals(number), time.monotonic()

    def _listen(self) -> None:
        """Until the other end is closed."""
        since: float | None = None
        while received := self._inbox.recv(1):
            number = signal.Signals(received[0])
            if number not in WISHES:
                continue
            if since is None:
                since = time.monotonic()
                self._heard(number)
            elif _is_order(number, since) and not self._is_over.wait(GRACE):
                say_at_the_end("ended at once, without saving")
                os._exit(SIGNALLED + number)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._inbox, self._outbox = socket.socketpair()
            self._outbox.setblocking(False)
            self._listener = threading.Thread(target=self._listen, name="signals", daemon=True)
            self._listener.start()
            self._wakeup_before = signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._note) for number in WISHES}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
            self._outbox.close()
            self._listener.join()
            self._inbox.close()


def _is_order(number: int, since: float) -> bool:
    return number == signal.SIGINT or time.monotonic() - since > TWICE
