"""Standard output and standard error that can break nothing: no character, no reader who has left, no full disk.

A terminal may not know a character, and is then shown a question mark. What cannot be written at all is lost, where
something is under way that is worth more than what it shows.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import Any, TextIO, cast

from rich.console import Console


def open_streams() -> None:
    """To be called first of all, by a program. Output that cannot be shown is replaced.

    Where the program was started with streams closed, the next file that it opens would become its standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="replace")


def outlast_readers() -> None:
    """From now on nothing that is printed fails, in a program whose standard output and error are its own.

    As in `meshwright train ... | head`, or when the terminal is gone, or the disk of the log is full.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, lasting(stream.fileno(), stream))


def lasting(file: int, like: TextIO) -> TextIO:
    """A text stream to an open file that takes all that is written, encoded as that of `like` is."""
    like.flush()
    buffer = io.BufferedWriter(_Lasting(file, "w", closefd=False))
    buffered = getattr(like, "line_buffering", True)
    return io.TextIOWrapper(buffer, encoding=like.encoding, errors=like.errors, line_buffering=buffered)


class _Lasting(io.FileIO):
    _is_told = False

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return self._write(data)
        if self.fileno() != 2 and not self._is_told:
            self._is_told = True
            with contextlib.suppress(OSError):
                os.write(2, b"WARNING: standard output can no longer be written; what is shown there is lost\n")
        return len(data)

    def _write(self, data: Any) -> int:
        while (count := cast(int | None, super().write(data))) is None:  # a stream that does not block
            select.select([], [self], [])
        return count


class Shown:
    """A stream of somebody else's, through which nothing that is printed fails."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                try:
                    self._stream.write(text)
                except UnicodeEncodeError:
                    encoding = self._stream.encoding or "ascii"
                    self._stream.write(text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_console(error: bool = False, **options: Any) -> Console:
    """Rich's, on standard output or standard error as they are now."""
    return Console(file=cast(TextIO, Shown(sys.stderr if error else sys.stdout)), **options)


def say_at_the_end(text: str) -> None:
    """On standard error, after what was printed before, by a process that ends whatever becomes of its words."""
    Shown(sys.stdout).flush()
    print(text, file=cast(TextIO, Shown(sys.stderr)), flush=True)
