"""How long processes wait for each other, in seconds: one table, as each is only right beside the others."""

from __future__ import annotations

import os

BEAT = 1.0
"""Between two signs of life of a process."""
LOST_AFTER = float(os.environ.get("MESHWRIGHT_LOST_AFTER", 20))
"""Without one, a process is lost, and the others end: within 30 s of its last, unless the environment has it longer."""
SERVICE_HEARTBEAT = 120
"""JAX's own, which ends the process from within C++ and names nobody: only for where ours has failed."""
LINGER = LOST_AFTER + 10
"""The coordinator goes on so long after process 0 is gone, for the others to hear of it."""
JOIN = float(os.environ.get("MESHWRIGHT_JOIN_SECONDS", 600))
"""For all processes to be started; a queue may hand out hosts one after another."""
SLACK = 60
"""JAX waits so much longer for what we wait for: where it gives up, it ends the process from within C++."""
GOODBYE = 60
"""For all processes to come to their end."""
