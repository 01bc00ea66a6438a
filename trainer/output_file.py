"""A file that a command is asked to write: what cannot be written is refused before the work is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import ConfigError


def check_output(option: str, path: Path, endings: Sequence[str]) -> None:
    """Whether `write_output` can write there, as far as can be known; leaves no file.

    A name has to end in one of `endings`: so a slip of the hand overwrites no file of another kind.

    Raises:
        ConfigError: it cannot.
    """
    if path.suffix.lower() not in endings:
        raise ConfigError(f"{option} {path}: name a file that ends in {' or '.join(endings)}")
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        why = "is a folder, or not yours" if place.exists() else "no such folder"
        raise ConfigError(refusal(f"{option} {path}", why))


def write_output(option: str, path: Path, text: str) -> None:
    """Writes it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(refusal(f"{option} {path}", error.strerror)) from None


def refusal(what: object, why: str | None) -> str:
    """What is said of a file that cannot be written."""
    return f"{what} cannot be written ({why}); name a file in a folder that is there"
