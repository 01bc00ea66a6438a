"""Which steps went wrong, from their numbers alone: those that are not finite, and spikes.

A pure function of the losses and gradient norms in their order: the same on every process, and, as a checkpoint keeps
what it remembers, after a restart. It never asks for a number itself, so the host does not wait for the devices.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from trainer.failures.config import FailuresConfig, Kind

_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}


@dataclass(frozen=True)
class Trouble:
    """A step that went wrong."""

    step: int
    """Counted as metrics do: the first is 1."""
    loss: float
    grad_norm: float
    kind: Kind
    why: str
    """`its loss is ...`"""
    skips: int = 0
    """Steps in a row that changed nothing, with this one."""


class Guard:
    """Looks at every step once, in order.

    The limits are `spike_*` times the medians of the last `window` finite steps, spikes included, so that a level that
    stays is a spike only until most of the window is of it. They are renewed every `every` steps of the run: those are
    when the host reads the numbers of all steps before, and knows them when it sends the next step off.
    """

    def __init__(self, config: FailuresConfig, every: int) -> None:
        factors = {"loss": config.spike_loss, "grad_norm": config.spike_grad_norm}
        self._skips = config.skips
        looks = config.on_spike != "none"
        self._factors = {name: factor for name, factor in factors.items() if looks and factor is not None}
        self._every = every
        self._window: deque[tuple[float, float]] = deque(maxlen=config.window)
        self.limits: dict[str, float] = {}
        """What is more than this is a spike, once there is a window to tell by."""
        self.skips = 0
        """The last steps in a row that changed nothing."""

    def look(self, step: int, loss: float, grad_norm: float) -> Trouble | None:
        """What is wrong with the next step, if anything."""
        values = {"loss": loss, "grad_norm": grad_norm}
        found = self._nonfinite(step, values)
        if found is None:
            found = self._spike(step, values)
            self._window.append((loss, grad_norm))
        self.skips = self.skips + 1 if found is not None and self._skips(found.kind) else 0
        if step % self._every == 0 and len(self._window) == self._window.maxlen:
            medians = dict(zip(values, map(median, zip(*self._window, strict=True)), strict=True))
            # As precise as the devices compare.
            self.limits = {name: float(np.float32(factor * medians[name])) for name, factor in self._factors.items()}
        return found and replace(found, skips=self.skips)

    def _nonfinite(self, step: int, values: Mapping[str, float]) -> Trouble | None:
        for name, value in values.items():
            if not math.isfinite(value):
                why = f"its {_NAMES[name]} is not finite"
                return Trouble(step, values["loss"], values["grad_norm"], "nonfinite", why)
        return None

    def _spike(self, step: int, values: Mapping[str, float]) -> Trouble | None:
        for name, limit in self.limits.items():
            if values[name] > limit:
                factor = self._factors[name]
                why = (
                    f"its {_NAMES[name]}, {values[name]:.4g}, is more than {factor:g} times the usual "
                    f"{limit / factor:.4g}"
                )
                return Trouble(step, values["loss"], values["grad_norm"], "spike", why)
        return None

    @property
    def limits_of_devices(self) -> np.ndarray:
        """float32 [2]: the largest loss and gradient norm that are no spike, infinite where there is no limit."""
        return np.array([self.limits.get(name, math.inf) for name in _NAMES], np.float32)

    def memory(self) -> dict[str, Any]:
        """All that it remembers, as JSON can hold it without loss."""
        return {"window": [list(values) for values in self._window], "limits": self.limits, "skips": self.skips}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Goes on from there; from the start where it is empty."""
        self._window.clear()
        self._window.extend((loss, norm) for loss, norm in memory.get("window", ()))
        self.limits = {name: limit for name, limit in memory.get("limits", {}).items() if name in self._factors}
        self.skips = memory.get("skips", 0)
