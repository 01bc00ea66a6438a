"""Where every process says where it stands, so that each can tell which of them the others wait for."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple, Protocol

from trainer.failures.phases import WAITS, Stand
from trainer.processes.membership import Membership, current, process_index


class Post(NamedTuple):
    """What stands on the board of a process."""

    tick: int
    """One more each time, so that a process that is stopped can be told from one that waits."""
    stand: Stand


class Board(Protocol):
    """Seen from one process. What reaches the others raises RuntimeError where it does not reach them."""

    index: int
    """Of this process."""

    def put(self, post: Post) -> None:
        """Says where this process stands."""

    def read(self) -> dict[int, Post]:
        """Where each was when it last said so."""

    def call(self, process: int) -> str:
        """The name of a process, as a user knows it: `process 3 on gpu02`."""

    def fail(self, sentence: str) -> None:
        """Tells the others that this process ends, and why."""


class Alone:
    """The only one; or one of those that somebody else than this program has joined."""

    def __init__(self) -> None:
        self.index = process_index()
        self._posts: dict[int, Post] = {}

    def put(self, post: Post) -> None:
        self._posts = {self.index: post}

    def read(self) -> dict[int, Post]:
        return self._posts

    def call(self, process: int) -> str:
        return f"process {process} on {socket.gethostname()}"

    def fail(self, sentence: str) -> None:
        pass


class Together:
    """By the store in which processes that train together keep what all must know."""

    def __init__(self, here: Membership) -> None:
        self._here = here
        self.index = here.place.process
        self._folder = here.turn("stands")

    def put(self, post: Post) -> None:
        self._here.store.put(f"{self._folder}/{self.index}", json.dumps([post.tick, asdict(post.stand)]))

    def read(self) -> dict[int, Post]:
        posts = {int(process): json.loads(text) for process, text in self._here.store.folder(self._folder).items()}
        return {process: Post(tick, Stand(**stand)) for process, (tick, stand) in posts.items()}

    def call(self, process: int) -> str:
        return self._here.names[process]

    def fail(self, sentence: str) -> None:
        self._here.watch.fail(sentence)


def find_board() -> Board:
    """To be asked for by all processes, in the same order as all else that takes a turn."""
    here = current()
    return Alone() if here is None else Together(here)


def behind(stands: Mapping[int, Stand], silent: Sequence[int]) -> list[int]:
    """The processes that the others wait for: those that give no sign; else, of those that have sent off the fewest
    steps, the ones that do not wait themselves. None where these wait too: then it is the devices."""
    if silent:
        return sorted(silent)
    fewest = min(stand.step for stand in stands.values())
    last = [process for process, stand in stands.items() if stand.step == fewest]
    return sorted(process for process in last if not stands[process].phase.startswith(WAITS))
