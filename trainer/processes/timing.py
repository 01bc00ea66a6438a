"""How long processes wait for each other, in seconds: one table, as each is only right beside the others."""

from __future__ import annotations

import os
import sys


def _seconds(name: str, usual: float) -> float:
    """Of the environment. What is wrong there is told before there is anybody to raise it to."""
    text = os.environ.get(name, str(usual))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 1e7:
        print(f"error: {name}={text[:40]!r} is no number of seconds above 0", file=sys.stderr)
        raise SystemExit(2)
    return seconds


BEAT = 1.0
"""Between two signs of life of a process."""
LOST_AFTER = _seconds("MESHWRIGHT_LOST_AFTER", 20)
"""Without one, a process is lost, and the others end: within 30 s of its last, unless the environment has it longer."""
SERVICE_HEARTBEAT = 120
"""JAX's own, which ends the process from within C++ and names nobody: only for where ours has failed."""
LINGER = LOST_AFTER + 10
"""The coordinator goes on so long after process 0 is gone, for the others to hear of it."""
JOIN = _seconds("MESHWRIGHT_JOIN_SECONDS", 600)
"""For all processes to be started; a queue may hand out hosts one after another."""
SLACK = 60
"""JAX waits so much longer for what we wait for: where it gives up, it ends the process from within C++."""
GOODBYE = 60
"""For all processes to come to their end."""
