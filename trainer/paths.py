"""Paths that a user gives, in a config or on the command line: `~` is a home folder, and only files of this machine
can be had.

Every key and every argument that is a path goes through `local`: keys by their types, in `trainer.path_types`,
arguments by `argument`.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Any, TypeVar

from trainer.errors import ConfigError
from trainer.secrets import hide

STDLIB = "stdlib"
"""What `data.path` may be instead of a path."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a Path has one slash less

P = TypeVar("P", str, Path)


def local(path: P) -> P:
    """The path, with `~` written out.

    Raises:
        ConfigError: it is an address, such as gs://bucket, or begins with the home folder of nobody.
    """
    text = os.path.expanduser(path)
    if _ADDRESS.match(text):
        raise ConfigError(
            f"{hide(str(path))!r} is an address, and files are read and written on this machine alone; mount it, or "
            "copy it here, and give the path"
        )
    if text.startswith("~") and not os.path.exists(text):
        name = text.partition("/")[0]
        raise ConfigError(f"{str(path)!r}: no home folder of {name!r} is known; write ./{name} for a file of that name")
    return type(path)(text)


def argument(value: Any) -> Any:
    """What the command line gave for an argument, every path in it being `local`."""
    if isinstance(value, tuple):
        return tuple(argument(part) for part in value)
    return local(value) if isinstance(value, Path) else value


def absolute(path: str) -> str:
    """The same file or glob, whatever the working folder is."""
    if os.path.isabs(path) or path == STDLIB:
        return path
    folder = os.getcwd()
    return os.path.join(glob.escape(folder) if glob.has_magic(path) and not os.path.exists(path) else folder, path)
