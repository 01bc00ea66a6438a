"""Draws every picture of the docs anew: python -m docs.pictures"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.py") if file.stem not in ("__main__", "drawing"))


def svg(name: str) -> str:
    return import_module(f"docs.pictures.{name}").draw().svg()


if __name__ == "__main__":
    for name in names():
        (FOLDER / f"{name}.svg").write_text(svg(name), encoding="utf-8")
