"""Hosts to train on, from a file as MPI and DeepSpeed have it: `gpu01 slots=8`, one host a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from trainer.errors import ConfigError


class Host(NamedTuple):
    """One line of the file."""

    name: str
    slots: int
    """Processes, which share the host's GPUs out evenly."""


def read_hosts(path: Path) -> list[Host]:
    """The hosts, in their order: process 0 is on the first. Blank lines, and what follows a #, say nothing.

    Raises:
        ConfigError: the file is not there, or a line is no host; with its place.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"--hosts {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"--hosts {path} is not text; write a host a line") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        # No name begins with a dash: ssh would take it for an option.
        if not (found := re.fullmatch(r"([\w.:@\[\]][\w.:@\[\]-]*)(?:\s+slots=([1-9]\d*))?", text, re.ASCII)):
            raise ConfigError(f"{path}:{number}: {text!r} is not a host; write HOST, or HOST slots=PROCESSES")
        hosts.append(Host(found.group(1), int(found.group(2) or 1)))
    names = [host.name for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{path}: {twice} stands there twice; give it one line with slots=N")
    if not hosts:
        raise ConfigError(f"{path} names no host; write one a line")
    return hosts
