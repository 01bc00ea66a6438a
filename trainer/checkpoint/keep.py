"""Which checkpoints of a run stay. Pure: steps and what was measured of them in, reasons out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

METRIC = "eval_loss"
"""The lowest is the best."""


@dataclass(frozen=True)
class Keep:
    """Rules; what any of them wants stays."""

    newest: int
    """So many."""
    every: int | None = None
    """Whose step is a multiple."""
    best: int = 0
    """So many with the lowest `METRIC`, of those where it was measured and is a number; of equals the older."""

    def reasons(self, measured: Mapping[int, Mapping[str, float]]) -> dict[int, list[str]]:
        """Why each step stays, by what was measured of it; without a reason, it may go."""
        steps = sorted(measured)
        evaluated = [step for step in steps if math.isfinite(measured[step].get(METRIC, math.nan))]
        best = sorted(evaluated, key=lambda step: measured[step][METRIC])[: self.best]
        why: dict[int, list[str]] = {step: [] for step in steps}
        for step in steps[-self.newest :]:
            why[step].append("newest" if step == steps[-1] else f"one of the newest {self.newest}")
        for step in steps:
            if self.every is not None and step % self.every == 0:
                why[step].append(f"every {self.every}")
        for place, step in enumerate(best):
            why[step].append("best" if place == 0 else f"one of the best {self.best}")
        return why
