"""One axis of a chart: from which number to which, on what scale, and where its ticks are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

WIDE = 30
"""The largest over the smallest, both positive, from which on a scale is logarithmic."""


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(cls, numbers: np.ndarray, *, snug: bool = False, from_zero: bool = False) -> Axis:
        """Around those of the numbers that are finite, with some air unless `snug`, which is linear too."""
        finite = numbers[np.isfinite(numbers)]
        if not len(finite):
            return cls(0.0, 1.0)
        low, high = float(finite.min()), float(finite.max())
        if snug:
            return cls(0.0 if 0 < low < high / 10 else low, high if high > low else low + 1)
        positive = finite[finite > 0]
        if not from_zero and low >= 0 and len(positive) and high / float(positive.min()) > WIDE:
            return cls(float(positive.min()) / 1.3, high * 1.3, logarithmic=True)
        if from_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        air = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(low - (0 if from_zero and low == 0 else air), high + air)

    def place(self, numbers: np.ndarray) -> np.ndarray:
        """0 at `low`, 1 at `high`; what a logarithm has no place for is at 0."""
        if not self.logarithmic:
            return (numbers - self.low) / (self.high - self.low)
        low, high = math.log(self.low), math.log(self.high)
        return (np.log(np.maximum(numbers, self.low)) - low) / (high - low)

    def ticks(self, most: int = 6) -> list[float]:
        """A few round numbers between the ends, `most` at most."""
        if not self.logarithmic:
            return _round_numbers(self.low, self.high, most)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
            found = [tick for tick in found if self.low <= tick <= self.high]
            if len(found) <= most:
                return found
        return found[:: -(-len(found) // most)]


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * (1 - 1e-9))
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
