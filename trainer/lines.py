"""Files of lines, such as metrics.jsonl: read from their end, and as JSON objects. Knows nothing of what they say."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def record_of(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line is; None for another, such as one that a killed process left half written."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file such as metrics.jsonl, in their order."""
    with path.open("rb") as file:
        yield from (record for line in file if (record := record_of(line)) is not None)
