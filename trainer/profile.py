"""A trace of a few steps, for XProf."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax

from trainer.settings import ProfileConfig


class Profile:
    """Traces the steps that `config` names into `folder`; nothing where it is None. Ends with the loop.

    Args:
        step: how many are finished before the loop begins.
    """

    def __init__(self, config: ProfileConfig | None, folder: Path, step: int) -> None:
        self._config = config
        self._folder = folder
        self._first = step
        self._running = False

    def after(self, step: int, result: Any) -> None:
        """To be told of each finished step; waits for `result` where the trace begins and ends, so that it is whole."""
        if self._config is not None and step == self._config.start:
            jax.block_until_ready(result)
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        elif self._config is not None and step == self._config.start + self._config.steps:
            jax.block_until_ready(result)
            self._stop()

    def _stop(self) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False

    def __enter__(self) -> Self:
        self.after(self._first, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
