"""A small JSON file with a checksum of itself: what was changed since is never taken for what was written."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from trainer.checkpoint.damage import Damaged


def write_sealed(path: Path, content: Any) -> None:
    """Writes it whole or not at all, and waits until it is on the disk."""
    part = path.with_name(f".{path.name}.part")
    text = json.dumps({"crc32": _checksum(content), "content": content})
    with part.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def read_sealed(path: Path) -> Any:
    """What `write_sealed` was given.

    Raises:
        Damaged: it is not what was written, or not there.
        OSError: it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(file, "rb") as opened:
            sealed = json.loads(opened.read())
        if sealed["crc32"] == _checksum(sealed["content"]):
            return sealed["content"]
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise Damaged(f"{path.name} is not what was written")


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
