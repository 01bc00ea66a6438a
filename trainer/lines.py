"""The lines of a file, the last one first: how a long file ends is found at once. Knows nothing of what they say."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 16
"""Bytes read at a time."""


def backwards(path: Path) -> Iterator[tuple[int, bytes]]:
    """(the place at which it begins, a line with its line break), the last line first; that one may lack the break."""
    with path.open("rb") as file:
        begin, rest = file.seek(0, os.SEEK_END), b""
        while begin:
            end, begin = begin, max(begin - _BLOCK, 0)
            file.seek(begin)
            block = file.read(end - begin) + rest
            lines = io.BytesIO(block).readlines()
            rest = lines.pop(0) if begin else b""  # it may begin before this block
            place = begin + len(block)
            for line in reversed(lines):
                place -= len(line)
                yield place, line
