"""Ctrl-C and SIGTERM as a wish: finish the step, save, stop. A Ctrl-C after that is an order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class StopRequest:
    """`with` it around a loop that looks at `signal` between steps; outside the main thread it never sees one.

    `say` is told at once that the wish was heard.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        text = f"{self.signal.name}: finishing the step, then saving; Ctrl-C stops at once, without"
        # A thread of its own: this may have come in the middle of printing, and must not print then.
        threading.Thread(target=self._say, args=[text]).start()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
