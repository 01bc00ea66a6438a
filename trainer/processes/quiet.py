"""Keeps what C++ libraries print on standard output off it."""

from __future__ import annotations

import os
import sys

from trainer.streams import lasting


def keep_standard_output() -> None:
    """What Python prints goes where it went; gloo, which prints a line for each device and group, is not heard.

    Programs that are started inherit the closed one, so their output is to be captured.
    """
    kept = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    sys.stdout = lasting(kept, sys.stdout)
