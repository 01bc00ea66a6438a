"""Ends a run in which nothing moves any more, and says what everybody waits for.

A call to the devices that never returns cannot be interrupted, so this ends the process from a thread, once it has said
where each process stands and has written down what all threads are at. Knows phases, and not what is in them.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from trainer.commands.exit_codes import FAILED
from trainer.events import Events
from trainer.failures.board import Board, Post, behind
from trainer.failures.config import WatchdogConfig
from trainer.failures.phases import Phases, Stand
from trainer.streams import say_at_the_end

FOLDER = "watchdog"
"""In the run's: the stacks of each process."""
LOOKS = 20
"""So often within the time that it waits."""
LONGEST, SHORTEST = 10.0, 0.25
"""Seconds between two looks."""
TO_WRITE = 30.0
"""Seconds for what is written down at the end."""


class Watchdog:
    """`with` it around what `phases` tells of. Does nothing where `config.seconds` is null."""

    def __init__(self, config: WatchdogConfig, phases: Phases, board: Board, folder: Path) -> None:
        self._config, self._phases, self._board = config, phases, board
        self._stacks, self._events = folder / FOLDER / f"process-{board.index}.txt", Events(folder)
        self._between = min(LONGEST, max(SHORTEST, (config.seconds or 0) / LOOKS))
        self._tick = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=[config.seconds], name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._config.seconds is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._config.seconds is not None:
            self._thread.join(LONGEST)

    def _watch(self, seconds: float) -> None:
        last, still, looked = -1, 0.0, time.monotonic()
        while not self._is_over.wait(self._between):
            now = time.monotonic()
            # Time in which this process was stopped, as by Ctrl-Z, is nobody's fault.
            still += min(now - looked, 2 * self._between)
            looked = now
            stand = self._phases.stand()
            if stand.moves != last:
                last, still = stand.moves, 0.0
            self._post()
            if still > seconds and (still > self._config.compile_seconds or not self._compiles()):
                posts, silent = self._look_around()
                if self._phases.stand().moves == last:  # it takes a while to look
                    self._end(still, posts, silent)

    def _compiles(self) -> bool:
        """Whether this process may be compiling, or one that it waits for."""
        with contextlib.suppress(RuntimeError):
            stands = {process: post.stand for process, post in self._board.read().items()}
            return any(stands[process].is_first for process in behind(stands, []))
        return self._phases.stand().is_first

    def _post(self) -> None:
        self._tick += 1
        with contextlib.suppress(RuntimeError):  # who watches over the processes says so
            self._board.put(Post(self._tick, self._phases.stand()))

    def _end(self, still: float, posts: Mapping[int, Post], silent: list[int]) -> NoReturn:
        stands = {process: post.stand for process, post in posts.items()}
        last, own = behind(stands, silent), stands[self._board.index]
        said = "; ".join(
            [
                f"nothing has moved for {still:.0f} s: {self._board.call(self._board.index)} is {own}",
                *self._blame(stands, silent, last),
                f"what all its threads are at is in {self._stacks}",
                "the same command goes on from the newest checkpoint",
            ]
        )
        event = None
        if self._board.index in last or self._board.index == min(posts.keys() - set(silent)):  # one for all that wait
            event = {"process": self._board.index, "phase": own.phase, "behind": last, "seconds_lost": still}
            say_at_the_end(f"error: {said}")
        # By a thread that is not waited for: the disk may be what hangs.
        writer = threading.Thread(target=self._write_down, args=[said, own.step, event], daemon=True)
        writer.start()
        writer.join(TO_WRITE)
        time.sleep(2 * self._between)  # for others, to whom the same has happened, to write down theirs
        with contextlib.suppress(RuntimeError):
            self._board.fail(said)
        os._exit(FAILED)

    def _write_down(self, said: str, step: int, event: Mapping[str, Any] | None) -> None:
        if event is not None:
            self._events.tell("watchdog", step, **event)
        with contextlib.suppress(OSError):
            self._stacks.parent.mkdir(exist_ok=True)
            with self._stacks.open("w", encoding="utf-8") as file:
                file.write(f"{datetime.datetime.now().astimezone().isoformat(timespec='seconds')} {said}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)

    def _look_around(self) -> tuple[Mapping[int, Post], list[int]]:
        """What stands on the board, and whose posts are not renewed."""
        own = {self._board.index: Post(self._tick, self._phases.stand())}
        try:
            before = self._board.read()
            self._is_over.wait(3 * self._between)
            self._post()
            after = self._board.read()
        except RuntimeError:
            return own, []
        silent = [
            process
            for process, post in after.items()
            if process != self._board.index and process in before and post.tick == before[process].tick
        ]
        return {**after, **own}, silent

    def _blame(self, stands: Mapping[int, Stand], silent: list[int], last: list[int]) -> Iterator[str]:
        if not last:
            yield "nobody is behind: the devices do not answer, or what is between them"
        elif last == [self._board.index] and len(stands) > 1:
            yield "the others wait for it"
        for process in last:
            name = self._board.call(process)
            if process in silent:
                yield f"{name} gives no sign of life, and was {stands[process]}"
            elif process != self._board.index:
                yield f"{name} is behind, {stands[process]}"
