"""The divisors of a size: the choices that work. Knows nothing of what is divided."""

from __future__ import annotations

import math

_MOST = 100_000
"""Numbers that are tried: all there are of a size below 10**10, and the time is bounded whatever a config says."""


def divisors(number: int) -> list[int]:
    """Ascending; of a number of 10**10 or more some may be missing."""
    small = [n for n in range(1, min(math.isqrt(number), _MOST) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
