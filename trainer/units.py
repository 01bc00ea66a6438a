"""Units that sizes and times are told in."""

from __future__ import annotations

import math

GIB = 2**30
MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def binary(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    power = min(int(math.log2(max(count, 1))) // 10, len(_BINARY) - 1)
    return f"{count / 1024**power:.{2 if power else 0}f} {_BINARY[power]}"
