"""Which of several processes this one is, as the environment says it. Knows nothing of JAX.

Launchers nest (torchrun within srun, mpirun within sbatch): the innermost is asked first. What is set by half, or
contradicts itself, is refused in words: a run that silently trains alone on each host is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainer.errors import ConfigError

Environment = Mapping[str, str]

COORDINATOR, PROCESSES, PROCESS = "MESHWRIGHT_COORDINATOR", "MESHWRIGHT_PROCESSES", "MESHWRIGHT_PROCESS"
OURS = (COORDINATOR, PROCESSES, PROCESS)
"""What `meshwright train --processes` and `meshwright launch` set, and anybody may."""
ON_HOST, INDEX_ON_HOST = "MESHWRIGHT_ON_HOST", "MESHWRIGHT_INDEX_ON_HOST"
"""And, if it likes: how many processes are on this host, and which of them this is."""
OUR_WAY = f"or set {COORDINATOR}=HOST:PORT, {PROCESSES}=N and {PROCESS}=0..N-1, which go before all else"

_MOST_DIGITS = 18  # more than any launcher counts to
PORT = 29400
"""Of the coordinator, where a launcher names its host alone."""


@dataclass(frozen=True)
class Place:
    """One process among those that train together."""

    told_by: str
    """Who set the environment, in a user's words."""
    coordinator: str
    """HOST:PORT where process 0 answers the others."""
    processes: int
    process: int
    """From 0."""
    on_host: int | None = None
    """Processes on this host, where the launcher tells."""
    index_on_host: int | None = None

    def __post_init__(self) -> None:
        host, _, port = self.coordinator.rpartition(":")
        if not host or not _is_number(port) or not 0 < int(port) < 2**16:
            raise ConfigError(f"{self.told_by}: the coordinator is {self.coordinator!r}, and must be HOST:PORT")
        if not 0 <= self.process < self.processes:
            raise ConfigError(
                f"{self.told_by}: this is process {self.process} of {self.processes}; they count from 0 to "
                f"{self.processes - 1}"
            )


Source = Callable[[Environment], Place | None]
"""What one launcher says; None where it is not there. Raises ConfigError where only a part of it is."""


def number(environment: Environment, name: str) -> int:
    """An environment variable that holds a number from 0.

    Raises:
        ConfigError: it holds something else.
    """
    if not _is_number(environment[name]):
        raise ConfigError(f"{name}={environment[name][:40]!r} is not a number")
    return int(environment[name])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def require(environment: Environment, names: tuple[str, ...], told_by: str) -> None:
    """Raises ConfigError unless all of them are set and none is empty."""
    there = [name for name in names if environment.get(name)]
    missing = [name for name in names if name not in there]
    if missing:
        raise ConfigError(
            f"{told_by} has set {', '.join(there)}, but not {', '.join(missing)}: set these too, or none; {OUR_WAY}"
        )
