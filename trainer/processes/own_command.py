"""Programs of this project, started as processes: how they are called, and how they say that they are what was meant.

A folder may hold a `trainer.py` of its user's, which `python -m trainer` would run. So Python is told not to look for
modules where it happens to stand, and whoever starts a process listens for a word that no other program says.
"""

from __future__ import annotations

import os
import sys

GREETING = "MESHWRIGHT_GREETING"
"""Set for a process that is to say this word on standard error, as its first line."""


def own_command(module: str, *args: str) -> list[str]:
    """The command that runs a module of this project with this Python, whatever lies in the working folder."""
    return [sys.executable, "-P", "-m", module, *args]


def greet() -> None:
    """Says the word that was asked for, if one was; to be called first of all."""
    if word := os.environ.pop(GREETING, None):  # what this process starts has nothing to say
        os.write(2, f"{word}\n".encode())
