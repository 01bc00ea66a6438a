"""A number of the traced step beside the same of the compiled one, and the causes of what is between them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from trainer.planner.executed import Executed

REPEATED = "run again by XLA, to save memory"


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
    """Whether it, or what it is within, is run again to save memory."""
    return any(within.instruction.name in within.computation.repeated for within in (one, *one.callers))
