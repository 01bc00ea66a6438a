"""`meshwright train CONFIG --processes N --restarts N`: processes of this host, started again where that may help."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import ConfigError
from trainer.processes.children import Children, End, passed_on
from trainer.processes.gpus import LOCAL_DEVICES, count_gpus, visible_gpus
from trainer.processes.place import COORDINATOR, PROCESS, PROCESSES

if TYPE_CHECKING:
    from trainer.config import Config

BECAUSE = "MESHWRIGHT_RESTARTED_BECAUSE"
"""Set for processes that are started again: how the last ones ended."""
WRONG_INPUT, SIGNALLED = 2, 128
"""Exit codes from which no restart helps: a wrong config, and (above) a wish to stop."""
_LONGEST_WAIT = 60.0


@dataclass(frozen=True)
class Start:
    """What is started."""

    command: Sequence[str]
    environments: Sequence[Mapping[str, str]]


def supervise(make: Callable[[], Start], restarts: int, say: Callable[[str], None]) -> int:
    """Runs what `make` makes, anew for each start; returns the exit code."""
    because: dict[str, str] = {}
    for done in range(restarts + 1):
        start = make()
        environments = [{**environment, **because} for environment in start.environments]
        with Children(start.command, environments) as children, passed_on(children):
            end = children.wait()
        if end.code == 0 or end.code > SIGNALLED:
            return end.code
        _tell(end, len(environments), say)
        if end.code == WRONG_INPUT or children.is_asked or done == restarts:
            break
        wait = min(2.0**done, _LONGEST_WAIT)
        say(f"starts again from the newest checkpoint in {wait:.0f} s (restart {done + 1} of {restarts} at most)")
        time.sleep(wait)
        because = {BECAUSE: end.how}
    return end.code if end.code > 0 else SIGNALLED - end.code


def _tell(end: End, count: int, say: Callable[[str], None]) -> None:
    """Of the first process everything has been heard already."""
    lines = "".join(f"\n  {line}" for line in end.lines) if end.process else ""
    others = ", and the others were ended" if count > 1 else ""
    if end.process or end.code != WRONG_INPUT:
        say(f"error: {end.how}{others}" + (f"; its last lines:{lines}" if lines else ""))


def local_start(config: Config, path: Path, overrides: Sequence[str], processes: int) -> Start:
    """So many processes of this host, which share its devices out evenly.

    Raises:
        ConfigError: they do not share out.
    """
    command = [sys.executable, "-m", "trainer", "train", str(path), *overrides]
    if processes == 1:
        return Start(command, [{}])
    shares: list[dict[str, str]] = [{} for _ in range(processes)]
    if virtual := config.mesh.virtual_devices:
        if virtual % processes:
            raise ConfigError(
                f"--processes {processes}: mesh.virtual_devices={virtual} does not share out evenly; use a divisor"
            )
    elif gpus := visible_gpus(os.environ, count_gpus()):
        if gpus % processes:
            raise ConfigError(f"--processes {processes}: {gpus} GPUs do not share out evenly; use a divisor of it")
        each = gpus // processes
        for process, share in enumerate(shares):
            share[LOCAL_DEVICES] = ",".join(str(gpu) for gpu in range(process * each, (process + 1) * each))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = {COORDINATOR: address, PROCESSES: str(processes)}
    return Start(command, [common | share | {PROCESS: str(process)} for process, share in enumerate(shares)])
