"""Signs of life: each process gives one every second, and all end when one is lost or has failed.

Process 0 looks at all of them and writes what is new where the others read it, so that nobody reads much. A thread
talks, and another sees that it is answered: a coordinator whose host is down answers nothing. Knows nothing of JAX.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable

from trainer.processes.store import Store
from trainer.processes.timing import BEAT, LOST_AFTER

NEWS = "news"
"""What all processes read each second."""
LEFT = "left"
"""The last sign of a process that is done."""
Hear = Callable[[dict[str, str]], None]


class Watch:
    """Of one process over all. `end` is called with a sentence, from a thread, and must not return.

    Args:
        names: of all processes, as a user knows them: `process 3 on gpu02`.
    """

    def __init__(self, store: Store, process: int, names: list[str], end: Callable[[str], None]) -> None:
        self._store, self._process, self._names, self._end = store, process, names, end
        self._is_over = threading.Event()
        self._beats = itertools.count()
        now = time.monotonic()
        self._answered = now
        self._seen = dict.fromkeys(range(len(names)), ("", now))
        """Of each process the last sign, and when it was new."""
        self.hear: list[Hear] = []
        """Told the news each second, by a thread."""
        self._threads = [
            threading.Thread(target=self._repeat, args=[do], name=name, daemon=True)
            for name, do in (("signs of life", self.talk), ("answers", self.require_answers))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """This process is done: from now on it is not missed, and misses nobody."""
        self._is_over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(LOST_AFTER)
        self._sign(LEFT)

    def fail(self, reason: str) -> None:
        """This process ends, and the others have to."""
        self._is_over.set()
        self._store.put(f"failed/{self._process}", reason)
        if self._process == 0:
            self._store.put(f"{NEWS}/lost", f"{self._names[0]} failed: {reason}")

    def talk(self) -> None:
        """Once: gives a sign, hears the news, and ends where they are bad."""
        self._sign(str(next(self._beats)))
        if self._process == 0:
            self._look_at_all()
        news = self._store.folder(NEWS)
        self._answered = time.monotonic()
        if "lost" in news:
            self._end(news["lost"])
        for hear in self.hear:
            hear(news)
        self._note(0, news.get("sign", ""))
        self._require_signs([0])

    def _sign(self, sign: str) -> None:
        self._store.put(f"signs/{self._process}", sign)
        if self._process == 0:
            self._store.put(f"{NEWS}/sign", sign)

    def _look_at_all(self) -> None:
        for other, sign in self._store.folder("signs").items():
            self._note(int(other), sign)
        for other, reason in self._store.folder("failed").items():
            self._lose(f"{self._names[int(other)]} failed: {reason}")
        self._require_signs(range(1, len(self._names)))

    def _note(self, other: int, sign: str) -> None:
        if sign != self._seen[other][0]:
            self._seen[other] = sign, time.monotonic()

    def _require_signs(self, others: range | list[int]) -> None:
        for other in others:
            sign, when = self._seen[other]
            if sign != LEFT and time.monotonic() - when > LOST_AFTER:
                self._lose(
                    f"{self._names[other]} is lost: no sign of life for {LOST_AFTER:.0f} s (it was killed or stopped, "
                    "or its host is down)"
                )

    def _lose(self, sentence: str) -> None:
        if self._process == 0:
            self._store.put(f"{NEWS}/lost", sentence)
        self._end(sentence)

    def require_answers(self) -> None:
        """Once: ends where the coordinator has not answered for long."""
        if time.monotonic() - self._answered > LOST_AFTER:
            self._end(
                f"{self._names[0]} is lost: its coordinator has not answered for {LOST_AFTER:.0f} s (its host is down, "
                "or cannot be reached)"
            )

    def _repeat(self, do: Callable[[], None]) -> None:
        while not self._is_over.wait(BEAT):
            with contextlib.suppress(RuntimeError):  # the coordinator may answer again; else `require_answers` ends it
                do()
