"""This process among those that train together: joined once, kept until the end. Imports JAX only to join.

Whoever needs to know asks `current`; it is None in a process that is alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer.processes.gpus import count_gpus, local_devices
from trainer.processes.launchers import find_place
from trainer.processes.place import Place
from trainer.processes.stop import AgreedStop
from trainer.processes.store import Store
from trainer.processes.timing import JOIN
from trainer.processes.watch import Watch

if TYPE_CHECKING:
    from trainer.processes.coordinator import Coordinator

LOST = 1
"""What a process ends with when another is lost."""


@dataclass
class Membership:
    """Of this process."""

    place: Place
    store: Store
    watch: Watch
    client: Any
    """JAX' own; it is told when this process is done."""
    coordinator: Coordinator | None
    """Process 0 has it."""
    _stops: int = field(default=0, init=False)

    def agreed_stop(self, first: int) -> AgreedStop:
        """For a training loop that begins after `first` steps; all processes ask for theirs in the same order."""
        self._stops += 1
        stop = AgreedStop(self.store, self.place.process, self.place.processes, self._stops, first)
        self.watch.hear.append(stop.hear)
        return stop

    def exchange(self, about: str, mine: str) -> list[str]:
        """What each process says, in their order; waits for all. Each name is used once."""
        return exchange(self.store, self.place, about, mine)


def exchange(store: Store, place: Place, about: str, mine: str) -> list[str]:
    """See `Membership.exchange`."""
    store.put(f"{about}/{place.process}", mine)
    return [store.wait_for(f"{about}/{process}", JOIN) for process in range(place.processes)]


_current: Membership | None = None


def current() -> Membership | None:
    """None where this process is alone."""
    return _current


def is_first() -> bool:
    """Whether this process speaks for all: writes the run's files, shows what happens."""
    return _current is None or _current.place.process == 0


def join_others(environment: Mapping[str, str] = os.environ) -> Membership | None:
    """Joins the other processes where the environment says that there are some; does nothing the second time.

    To be called before JAX finds devices. Returns when all are there.

    Raises:
        ConfigError: the environment is set by half or contradicts itself, or JAX has devices already.
        OSError: not all processes came, or the coordinator cannot be had.
    """
    global _current
    if _current is None and (place := find_place(environment)) is not None:
        from trainer.processes.join import join

        _current = join(place, local_devices(place, environment, count_gpus()), environment)
    return _current
