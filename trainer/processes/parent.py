"""A process that ends when the one that started it does, however that ends. Linux tells it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping

PARENT = "MESHWRIGHT_PARENT"
"""Set for a process that is not to outlive the one with this id."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(environment: Mapping[str, str] = os.environ) -> None:
    """To be called first of all. Not set up by the parent: between fork and exec, JAX does not want anything done."""
    if (parent := environment.get(PARENT)) is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it is gone already
        os.kill(os.getpid(), signal.SIGKILL)
