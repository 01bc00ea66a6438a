"""The service through which processes find each other, in a process of its own beside process 0.

    python -m trainer.processes.coordinator HOST:PORT PROCESSES

JAX would run it inside of process 0, and when that is killed every other process would be ended from within C++, with
a stack trace and no word of who is missing. So it outlives process 0 by the time that the others need to say it.
Standard input tells the end: a line when all is done, nothing more when process 0 is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from jaxlib import _jax

from trainer.processes.own_command import own_command
from trainer.processes.timing import LINGER, SERVICE_HEARTBEAT


class Coordinator:
    """Runs it. `shutdown` is for when all processes have said goodbye.

    Raises:
        OSError: it cannot listen at this address.
    """

    def __init__(self, address: str, processes: int) -> None:
        command = own_command("trainer.processes.coordinator", address, str(processes))
        # In a session of its own: a Ctrl-C is for the processes that train.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.communicate()
            raise OSError(
                f"process 0 cannot listen at {address}: the port is taken, or the address is not one of this host's"
            )

    def shutdown(self) -> None:
        self._process.communicate("done\n")


def main(address: str, processes: str) -> None:
    """Serves until it is told to stop."""
    service = _jax.get_distributed_runtime_service(address, int(processes), heartbeat_timeout=SERVICE_HEARTBEAT)
    print("ready", flush=True)
    if sys.stdin.readline() != "done\n":
        time.sleep(LINGER)
        os._exit(1)  # whoever is left has been told, and would be waited for
    service.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
