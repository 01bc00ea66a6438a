"""Processes that train together, started from here: listened to, and ended together. Uses no threads."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.commands.exit_codes import SIGNALLED, WRONG_INPUT
from trainer.processes.own_command import GREETING
from trainer.processes.parent import PARENT
from trainer.signals import WISHES

GRACE = 5.0
"""Seconds in which the others may end by themselves when one has."""
STOPPED = {SIGNALLED + number for number in WISHES}
"""Exit codes of a process that was asked to stop, and did."""
_LOOK_EVERY = 0.1
_MOST_LINES = 20


@dataclass(frozen=True)
class Command:
    """What is started as one process."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """What is set besides this process' own environment."""
    script: str | None = None
    """For its standard input, which then stays open: signals are sent by name, a line each, and its end is the end."""


@dataclass(frozen=True)
class End:
    """How the first process that failed ended, or the last where all went well."""

    process: int
    code: int
    """As of `subprocess`: negative for a signal."""
    lines: tuple[str, ...] = ()
    """The last that it said on stderr, or anywhere."""
    is_foreign: bool = False
    """It was another program than ours, and what it has done is nothing to go by."""

    @property
    def how(self) -> str:
        """In words: `process 1 was killed by SIGKILL`."""
        if self.is_foreign:
            return (
                f"process {self.process} ended at once, and was not meshwright but another `trainer`; look what "
                "PYTHONPATH has before it (an empty part of it is the working folder)"
            )
        number = -self.code if self.code < 0 else self.code - SIGNALLED
        if number in set(signal.Signals):
            return f"process {self.process} was killed by {signal.Signals(number).name}"
        return f"process {self.process} ended with exit code {self.code}"


@dataclass
class _Child:
    popen: subprocess.Popen[bytes]
    index: int
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))
    begun: bytes = b""
    """Of a line that has not ended."""
    has_greeted: bool = False

    def last_lines(self) -> tuple[str, ...]:
        """That it said, the one that it has not ended too."""
        return (*self.lines, *filter(None, [self.begun.decode(errors="replace")]))[-_MOST_LINES:]

    def tell(self, text: str) -> None:
        """Something on its standard input, if it still listens."""
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write(text.encode())

    def hear(self, heard: bytes, greeting: bytes) -> None:
        """What it says on stderr; the first process is heard at once, of others it is kept."""
        if greeting in heard:  # a short line of its own, which a pipe does not cut
            self.has_greeted = True
            heard = heard.replace(greeting, b"", 1)
        if self.index == 0:
            sys.stderr.buffer.write(heard)
            sys.stderr.buffer.flush()
        *whole, self.begun = (self.begun + heard).split(b"\n")
        self.lines.extend(line.decode(errors="replace") for line in whole if line.strip())


class Children:
    """`with` them; none of them outlives this process."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._selector = selectors.DefaultSelector()
        self._children: list[_Child] = []
        self.is_asked = False
        """Whether they were sent a signal."""
        word = f"meshwright {secrets.token_hex(8)}"
        self._greeting = f"{word}\n".encode()
        for index, command in enumerate(commands):
            popen = subprocess.Popen(
                command.argv,
                bufsize=0,
                env={**os.environ, **command.environment, PARENT: str(os.getpid()), GREETING: word},
                stdin=subprocess.DEVNULL if command.script is None else subprocess.PIPE,
                stdout=None if index == 0 else subprocess.PIPE,
                stderr=subprocess.PIPE if index == 0 else subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is passed on, and would come twice
            )
            child = _Child(popen, index)
            pipe = popen.stderr if index == 0 else popen.stdout
            assert pipe is not None
            self._selector.register(pipe, selectors.EVENT_READ, child)
            self._children.append(child)
            if command.script is not None:
                child.tell(f"export {GREETING}='{word}'\n{command.script}")

    def send(self, number: int) -> None:
        """A signal to all."""
        self.is_asked = True
        for child in self._children:
            if child.popen.poll() is not None:
                continue
            if child.popen.stdin is None:
                child.popen.send_signal(number)
            else:
                child.tell(signal.Signals(number).name.removeprefix("SIG") + "\n")

    def wait(self) -> End:
        """Until all have ended. When one fails, the others are ended too."""
        first: End | None = None
        deadline = float("inf")
        while running := [child for child in self._children if child.popen.poll() is None]:
            self._listen(_LOOK_EVERY)
            if first is None and (failed := self._failed()):
                first = failed
                deadline = time.monotonic() + GRACE
            if time.monotonic() > deadline and not self._stops_as_asked(first):
                for child in running:
                    child.popen.kill()
        self._listen(0)
        return first or self._failed() or End(0, 0)

    def _failed(self) -> End | None:
        """The first that failed, or ended well and has not said that it is ours."""
        for child in self._children:
            if (code := child.popen.poll()) is None or (code == 0 and child.has_greeted):
                continue
            self._listen(0)
            if code:
                return End(child.index, code, child.last_lines())
            if not child.has_greeted:
                return End(child.index, WRONG_INPUT, child.last_lines(), is_foreign=True)
        return None

    def _stops_as_asked(self, end: End | None) -> bool:
        """Whether they are on their way: each saves its part, and that takes its time."""
        return self.is_asked and end is not None and end.code in STOPPED

    def _listen(self, seconds: float) -> None:
        if not self._selector.get_map():  # which `select` would not wait for
            time.sleep(seconds)
            return
        while found := self._selector.select(seconds):
            for key, _ in found:
                if heard := os.read(key.fd, 1 << 16):
                    key.data.hear(heard, self._greeting)
                else:
                    self._selector.unregister(key.fileobj)
            seconds = 0

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.popen.kill()
            child.popen.wait()
            for pipe in filter(None, (child.popen.stdin, child.popen.stdout, child.popen.stderr)):
                pipe.close()
        self._selector.close()


@contextlib.contextmanager
def passed_on(children: Children) -> Iterator[None]:
    """Ctrl-C and SIGTERM of this process are its children's."""
    before = {number: signal.getsignal(number) for number in WISHES}
    for number in before:
        signal.signal(number, lambda number, _: children.send(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
