"""A number of the traced step beside the same of the compiled one, and the causes of what is between them."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Self

from trainer.planner.executed import Executed

REPEATED = "run again by XLA, to save memory"

_AGAIN = re.compile(r"\.remat.*$")


@dataclass(frozen=True)
class Cause:
    """Why the compiled step has more than the traced one, or less."""

    name: str
    amount: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """One number of a device, in bytes or FLOPs."""

    name: str
    traced: int
    compiled: int
    causes: tuple[Cause, ...] = ()

    @property
    def unexplained(self) -> int:
        """What the compiled step has more than the traced one and all causes."""
        return self.compiled - self.traced - sum(cause.amount for cause in self.causes)

    def with_cause(self, name: str, amount: int) -> Self:
        """With a cause more, if it is one."""
        return dataclasses.replace(self, causes=(*self.causes, Cause(name, amount))) if amount else self


def is_repeated(one: Executed) -> bool:
    """Whether this is there once more, because keeping what it makes would take too much memory.

    XLA says so by names: what is run again is called as the first is, with .remat after it.
    """
    return any(_is_copy(within) for within in (one, *one.callers))


def _is_copy(one: Executed) -> bool:
    name = one.instruction.name
    if ".remat" not in name:
        return False
    first = _AGAIN.sub("", name)
    alike = (other.name for other in one.computation.instructions if _AGAIN.sub("", other.name) == first)
    return next(alike) != name
