"""This process among those that train together: joined once, kept until the end. Imports JAX only to join.

Whoever needs to know asks `current`; it is None in a process that is alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer.processes.gpus import count_gpus, local_devices
from trainer.processes.launchers import find_place
from trainer.processes.place import Place
from trainer.processes.stop import AgreedStop, OwnStop
from trainer.processes.store import Store
from trainer.processes.watch import Watch

if TYPE_CHECKING:
    from trainer.processes.coordinator import Coordinator

LOST = 1
"""What a process ends with when another is lost."""


@dataclass
class Membership:
    """Of this process. What takes a turn of all processes, all have to ask for, in the same order."""

    place: Place
    names: list[str]
    """Of all processes, as a user knows them: `process 3 on gpu02`."""
    store: Store
    watch: Watch
    client: Any
    """JAX' own; it is told when this process is done."""
    coordinator: Coordinator | None
    """Process 0 has it."""
    _turns: int = field(default=0, init=False)

    @property
    def is_first(self) -> bool:
        """Whether it speaks for all."""
        return self.place.process == 0

    def turn(self, about: str) -> str:
        """A name in the store that was not used before."""
        self._turns += 1
        return f"{self._turns} {about}"


_current: Membership | None = None


def current() -> Membership | None:
    """None where this process is alone."""
    return _current


def process_index() -> int:
    """The number of this process among those that have been joined, by us or by `jax.distributed.initialize`.

    What `jax.process_index` says, without starting JAX: asking must not settle how many devices there are.
    """
    from jax._src import distributed

    return distributed.global_state.process_id


def process_count() -> int:
    """How many processes have been joined; 1 where this one is alone. Starts JAX no more than `process_index`."""
    from jax._src import distributed

    return distributed.global_state.num_processes


def is_first() -> bool:
    """Whether this process speaks for all: writes the run's files, shows what happens."""
    return process_index() == 0


def join_others(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes where the environment says that there are some; does nothing the second time.

    To be called before JAX finds devices. Returns when all are there.

    Raises:
        ConfigError: the environment is set by half or contradicts itself, or JAX has devices already.
        OSError: not all processes came, or process 0 cannot answer them.
    """
    global _current
    if _current is None and (place := find_place(environment)) is not None:
        from trainer.processes.join import join

        _current = join(place, local_devices(place, environment, count_gpus()), environment)


def agreed_stop(first: int) -> AgreedStop | OwnStop:
    """For a training loop that begins after `first` steps."""
    if (here := _current) is None:
        return OwnStop()
    stop = AgreedStop(here.store, here.place.process, here.place.processes, here.turn("stop"), first)
    here.watch.hear.append(stop.hear)
    return stop


def of_first(about: str, text: str) -> str:
    """The text that process 0 gives, for all."""
    if (here := _current) is None:
        return text
    turn = here.turn(about)
    if here.is_first:
        here.store.put(turn, text)
    return here.store.wait_for(turn)


@contextmanager
def first_alone(about: str) -> Iterator[None]:
    """`with` it around work that process 0 does, and that the others find done."""
    here = _current
    if here is None:
        yield
        return
    turn = here.turn(about)
    if here.is_first:
        yield
        here.store.put(turn, "done")
    else:
        here.store.wait_for(turn)
        yield
