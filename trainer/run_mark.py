"""How a run's folder is told from others: by two of its files."""

from __future__ import annotations

from pathlib import Path

CONFIG, ENVIRONMENT = "config.yaml", "environment.json"
HEADER = "# The resolved config of this run"
"""How its config begins."""


def is_run(folder: Path) -> bool:
    """Whether it is a run's, and not one into which somebody has put a config."""
    try:
        with Path(folder, CONFIG).open(encoding="utf-8") as file:
            return file.read(len(HEADER)) == HEADER and Path(folder, ENVIRONMENT).is_file()
    except (OSError, UnicodeDecodeError):
        return False
