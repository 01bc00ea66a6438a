"""`meshwright train CONFIG --processes N --restarts N`: processes of this host, started again where that may help."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.commands.exit_codes import NOT_AGAIN, SIGNALLED
from trainer.config_source import with_decided
from trainer.errors import ConfigError
from trainer.processes.children import STOPPED, Children, Command, End, passed_on
from trainer.processes.elastic import fit
from trainer.processes.gpus import LOCAL_DEVICES, count_gpus, visible_gpus
from trainer.processes.own_command import own_command
from trainer.processes.place import COORDINATOR, PROCESS, PROCESSES
from trainer.run_folder import BECAUSE

if TYPE_CHECKING:
    from trainer.config import Config

LEFT = "MESHWRIGHT_DEVICES_LEFT"
_LONGEST_WAIT = 60.0


def supervise(make: Callable[[int], list[Command]], restarts: int, say: Callable[[str], None]) -> int:
    """Runs what `make` makes of the number of each start, from 0; returns the exit code."""
    for done in range(restarts + 1):
        commands = make(done)
        with Children(commands) as children, passed_on(children):
            end = children.wait()
        if end.code == 0 or end.code in STOPPED:
            return end.code
        _tell(end, len(commands), say)
        if end.code in NOT_AGAIN or children.is_asked or done == restarts:
            break
        wait = min(2.0**done, _LONGEST_WAIT)
        say(f"starts again from the newest checkpoint in {wait:.0f} s (restart {done + 1} of {restarts} at most)")
        time.sleep(wait)
        os.environ[BECAUSE] = end.how
    return end.code if end.code > 0 else SIGNALLED - end.code


def _tell(end: End, count: int, say: Callable[[str], None]) -> None:
    """Of the first process everything has been heard already."""
    lines = "".join(f"\n  {line}" for line in end.lines) if end.process else ""
    others = ", and the others were ended" if count > 1 else ""
    if end.process or end.code not in NOT_AGAIN or end.is_foreign:
        say(f"error: {end.how}{others}" + (f"; its last lines:{lines}" if lines else ""))


def local_start(config: Config, path: Path, overrides: Sequence[str], processes: int, start: int) -> list[Command]:
    """So many processes of this host, which share its devices out evenly; fewer where `elastic` takes fewer devices.

    Args:
        start: how many there were before.

    Raises:
        ConfigError: the devices do not share out, or are too few.
    """
    gpus = 0 if config.mesh.virtual_devices else visible_gpus(os.environ, count_gpus())
    devices = _devices_left(config.mesh.virtual_devices or gpus, start)
    if config.elastic.sizes:
        mesh = fit(config, devices).mesh
        devices, processes = mesh.num_devices or 0, math.gcd(mesh.num_devices or 0, processes)
        chosen = {axis: mesh.sizes[axis] for axis in config.elastic.sizes} | {"virtual_devices": mesh.virtual_devices}
        decided = {f"mesh.{key}": value for key, value in chosen.items() if value is not None}
        overrides = with_decided(overrides, decided)
    if devices % processes:
        raise ConfigError(f"--processes {processes}: {devices} devices do not share out evenly; use a divisor of it")
    argv = tuple(own_command("trainer", "train", str(path), *overrides))
    if processes == 1:
        return [Command(argv)]
    common = {COORDINATOR: f"127.0.0.1:{_free_port()}", PROCESSES: str(processes)}
    each = devices // processes if gpus else 0
    return [Command(argv, common | _share(process, each)) for process in range(processes)]


def _share(process: int, gpus: int) -> dict[str, str]:
    numbers = range(process * gpus, (process + 1) * gpus)
    return {PROCESS: str(process)} | ({LOCAL_DEVICES: ",".join(map(str, numbers))} if gpus else {})


def _devices_left(devices: int, start: int) -> int:
    """For tests, a variable says it of each start, of the last and all after it last: 4,2."""
    left = [int(number) for number in os.environ.get(LEFT, str(devices)).split(",")]
    return left[min(start, len(left) - 1)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
