"""BLOOM 176B on 384 A100s, memory and time of a step: published, predicted for that run, and planned for ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Drawing
from trainer.config import Config
from trainer.planner import plan, published

CONFIG = Path(__file__).parents[2] / "configs" / "bloom-176b.yaml"
RUN = "bloom-176B-d8t4p12-m2-a112"
GIB = 2**30
# What a part of a bar is called -> its colour, and the fields that it is the sum of.
MEMORY = {
    "weights": (BLUE, {"weights"}),
    "gradients": (GREEN, {"gradients"}),
    "masters, moments": (PURPLE, {"master", "optimizer"}),
    "activations": (ORANGE, {"activations"}),
    "the rest": (FAINT, {"logits", "gathered", "pipeline", "collectives", "overhead"}),
}
SECONDS = {
    "matmuls": (BLUE, {"matmul"}),
    "attention, elementwise": (GREEN, {"attention", "elementwise"}),
    "gradient sum, update": (PURPLE, {"accumulation", "optimizer"}),
    "sent, not hidden": (ORANGE, {"tensor", "stages", "data"}),
    "bubble": (FAINT, {"bubble"}),
}
LEFT, WIDTH, ROW, HEIGHT = 190, 520, 34, 20


def draw() -> Drawing:
    (run,) = (run for run in published.read() if run.id == RUN)
    theirs = published.plan(run, published.gpu_of(run))
    ours = plan(Config.load(CONFIG), "a100")
    d = Drawing(824, 350, "Memory and time of BLOOM 176B on 384 A100s: published, predicted, and as meshwright would")
    memory = {"predicted for it": asdict(theirs.memory[theirs.worst_stage]), "meshwright's plan": asdict(ours.memory)}
    _panel(d, 34, "GiB of a GPU, of 79.3", run.gigabytes_per_gpu or 0, memory, MEMORY, GIB, 80)
    seconds = {"predicted for it": asdict(theirs.seconds), "meshwright's plan": asdict(ours.seconds)}
    _panel(d, 200, "seconds of a step", run.seconds_per_step or 0, seconds, SECONDS, 1, 120)
    return d


def _panel(
    d: Drawing,
    top: float,
    title: str,
    measured: float,
    bars: Mapping[str, Mapping[str, float]],
    parts: Mapping[str, tuple[str, set[str]]],
    unit: float,
    most: float,
) -> None:
    """`measured` as an outline over the bars, `most` of which are as wide as the panel; a legend below."""
    d.text(20, top, title, INK, bold=True)
    d.text(LEFT - 12, top + 25, "published", INK, size=12, anchor="end")
    d.box(LEFT, top + 10, measured / most * WIDTH, HEIGHT, INK, filled=0, dashed=True, radius=2)
    d.text(LEFT + measured / most * WIDTH + 8, top + 25, f"{measured:g}", INK, size=12)
    for row, (name, fields) in enumerate(bars.items(), start=1):
        y, x = top + 10 + ROW * row, float(LEFT)
        d.text(LEFT - 12, y + 15, name, INK, size=12, anchor="end")
        for colour, kinds in parts.values():
            width = sum(fields[kind] for kind in kinds) / unit / most * WIDTH
            d.box(x, y, width, HEIGHT, colour, filled=0.35, radius=2)
            x += width
        d.text(x + 8, y + 15, f"{sum(fields.values()) / unit:.1f}", INK, size=12)
    x, y = float(LEFT), top + 10 + ROW * 3
    for name, (colour, _) in parts.items():
        d.box(x, y, 12, 12, colour, filled=0.35, radius=2)
        d.text(x + 17, y + 10, name, FAINT, size=11)
        x += 40 + 6 * len(name)
