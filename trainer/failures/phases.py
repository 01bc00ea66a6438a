"""Where a process stands: which step, what it is at, and whether anything moves.

The loop notes it, and the watchdog reads it. To note costs a microsecond and never waits: no phase is too small for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.offload.lanes import Lanes, Span

BETWEEN = "between two phases"
DEVICES, DATA, OTHERS = "waiting for the devices", "waiting for data", "waiting for the other processes"
STEP, SAVE, EVALUATION, STATE = "sending off a step", "saving", "evaluating", "making or reading the state"
WAITS = (DEVICES, OTHERS)
"""In which a process waits for what another may owe."""
COMPILES = (STEP, SAVE, EVALUATION, STATE)
"""In which programs are compiled, the first time."""


@dataclass(frozen=True)
class Stand:
    """At one moment."""

    step: int
    """Steps sent off."""
    phase: str
    moves: int
    """Changes with all that moves."""
    is_first: bool = False
    """Programs may be compiled in it, as it is the first of its phase."""

    def __str__(self) -> str:
        return f"at step {self.step}, {self.phase}{', perhaps compiling' if self.is_first else ''}"


class Phases(Lanes):
    """Of one process. As lanes, it notes what an offloaded update is at; any thread may tell it so."""

    def __init__(self) -> None:
        self._phases: list[str] = []
        self._over: set[str] = set()
        self._parts: dict[str, str] = {}
        self._step = self._moves = 0

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """`with` it around what is to be told as `phase`; an inner one stands for it meanwhile."""
        self._phases.append(phase)
        self.moved()
        try:
            yield
        finally:
            self._phases.pop()
            self._over.add(phase)
            self.moved()

    def moved(self) -> None:
        """Something has been done."""
        self._moves += 1

    def at(self, step: int) -> None:
        """So many steps have been sent off."""
        self._step = step
        self.moved()

    @contextlib.contextmanager
    def span(self, lane: str, label: str) -> Iterator[None]:
        """See `Lanes`: a part of an offloaded update."""
        self._parts[lane] = label
        self.moved()
        try:
            yield
        finally:
            self._parts.pop(lane, None)
            self.moved()

    def add(self, span: Span) -> None:
        """See `Lanes`: a part that is over."""
        self.moved()

    def stand(self) -> Stand:
        """Now."""
        phase = self._phases[-1] if self._phases else BETWEEN
        parts = ", ".join(f"{lane} {label}" for lane, label in [*self._parts.items()])
        is_first = phase in COMPILES and phase not in self._over
        return Stand(self._step, f"{phase} ({parts})" if parts else phase, self._moves, is_first)
