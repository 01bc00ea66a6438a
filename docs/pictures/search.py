"""The fastest layouts that a search finds for BLOOM 176B on 384 A100s: what a step's time goes into on each mesh."""

from __future__ import annotations

from pathlib import Path

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Drawing
from trainer.config import Config
from trainer.planner import load
from trainer.planner.candidates import Space
from trainer.planner.links import Cluster
from trainer.planner.ranking import Choice, Ranked

CONFIG = Path(__file__).parents[2] / "configs" / "bloom-176b.yaml"
SHOWN = 8
# What a part of a bar is called -> its colour, and the terms of a step's time that it is the sum of.
PARTS = {
    "matmuls": (BLUE, ("matmul",)),
    "attention, elementwise": (GREEN, ("attention", "elementwise")),
    "gradient sum, update": (PURPLE, ("accumulation", "optimizer")),
    "sent, not hidden": (ORANGE, ("tensor", "stages", "data")),
    "bubble": (FAINT, ("bubble",)),
}
LEFT, WIDTH, TOP, ROW, HEIGHT = 270, 490, 48, 30, 18
MOST = 90
"""Seconds that are as wide as the picture."""


def draw() -> Drawing:
    fastest: dict[str, Choice] = {}
    for choice in Ranked(Space(Config.load(CONFIG), 384), Cluster(load("a100"), 8)):
        fastest.setdefault(_mesh(choice), choice)
        if len(fastest) == SHOWN:
            break
    d = Drawing(824, TOP + SHOWN * ROW + 44, "Seconds of a step of BLOOM 176B on 384 A100s, on the fastest meshes")
    d.text(20, 28, "seconds of a step on 384 A100s", INK, bold=True)
    for row, choice in enumerate(fastest.values()):
        _row(d, TOP + row * ROW, choice)
    x = 20.0
    for name, (colour, _) in PARTS.items():
        d.bar(x, d.height - 26, 10, 10, colour)
        d.text(x + 16, d.height - 17, name, FAINT, size=12)
        x += 44 + 7 * len(name)
    return d


def _mesh(choice: Choice) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in choice.candidate.mesh.items())


def _row(d: Drawing, y: float, choice: Choice) -> None:
    d.text(LEFT - 12, y + 14, _mesh(choice), INK, size=12, anchor="end")
    x = float(LEFT)
    for colour, terms in PARTS.values():
        width = sum(getattr(choice.estimate.seconds, term) for term in terms) / MOST * WIDTH
        d.bar(x, y, width, HEIGHT, colour)
        x += width
    d.text(x + 8, y + 14, f"{choice.seconds:.1f}", INK, size=12)
