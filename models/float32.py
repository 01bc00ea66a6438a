"""Numbers of a config that devices hold in float32, whose range is smaller than that of what a user writes.

What is finite where it is written may be infinite there, or 0, or 1: its bounds have to hold for what becomes of it.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_SMALLEST = float(np.finfo(np.float32).tiny)
"""XLA takes what is smaller for 0."""


@dataclass(frozen=True)
class Float32:
    """Bounds of a number, named as pydantic names them: `Annotated[float, Float32(gt=0)]`. None has none."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def allows(self, value: float) -> bool:
        """Whether a number is within the bounds, and stays so in float32."""
        return self._holds(value) and self.becomes(value) is None

    def becomes(self, value: float) -> str | None:
        """What float32 makes of a number within the bounds, where that is something else; as a message has it."""
        with np.errstate(over="ignore"):
            held = float(np.float32(value))
        if 0 < abs(held) < _SMALLEST:
            held = 0.0
        is_kept = math.isfinite(held) and (held != 0 or value == 0) and self._holds(held)
        return None if is_kept or not self._holds(value) else f"float32, which devices compute in, makes {held:g} of it"

    def _holds(self, value: float) -> bool:
        bounds = ((self.ge, operator.ge), (self.gt, operator.gt), (self.le, operator.le), (self.lt, operator.lt))
        return not math.isnan(value) and all(bound is None or holds(value, bound) for bound, holds in bounds)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: float | None) -> float | None:
        if value is not None and not self.allows(value):
            why = self.becomes(value) or "it is out of bounds"
            raise PydanticCustomError("float32", "{value}: {why}", {"value": value, "why": why})
        return value
