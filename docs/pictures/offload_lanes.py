"""What is at work when in two steps with an offloaded optimizer, as `benchmarks.offload_overlap` measured it.

python -m docs.pictures.offload_lanes FILE.csv PICTURE.svg or .png: of lanes of your own.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.offload.lanes import Span
from trainer.picture import Label, Picture, Rect, Shape

LANES = {
    "compute": ("the device computes", "#3f8ff0"),
    "down": ("gradients come down", "#e8863a"),
    "read": ("state is read from disk", "#8250df"),
    "update": ("cores update", "#2da44e"),
    "up": ("new weights go up", "#e8863a"),
    "write": ("state is written to disk", "#8250df"),
}
"""What each one does, and its colour."""
FILE = Path(__file__).parents[2] / "benchmarks/results/offload-overlap-lanes-2026-11-30.csv"
LEFT, TOP, ROW, BAR, WIDTH = 196, 76, 34, 22, 640
LEAST = 0.6
"""Pixels of a span, so that the shortest are seen."""
TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two marks: the first that leaves at most 8 of them."""


def draw() -> Picture:
    return lanes_picture(read(FILE))


def read(file: Path) -> list[Span]:
    """Spans as the benchmark writes them."""
    with file.open(newline="") as lines:
        return [
            Span(row["lane"], row["label"], float(row["start"]), float(row["end"])) for row in csv.DictReader(lines)
        ]


def lanes_picture(spans: Sequence[Span]) -> Picture:
    """Lanes down, time across. Spans of a lane that overlap are seen as one."""
    end = max(span.end for span in spans)
    height = TOP + ROW * len(LANES) + 10
    title = "Two steps with the optimizer's state on NVMe"
    shapes: list[Shape] = [Label("ink", 20, 29, title, bold=True), *_ruler(end, height - 14)]
    for row, (lane, (what, colour)) in enumerate(LANES.items()):
        y = TOP + ROW * row
        shapes += [Label("ink", 20, y + 9, lane), Label("faint", 20, y + 22, what)]
        shapes.append(Rect("idle", LEFT, y, WIDTH, BAR))
        for span in spans:
            if span.lane == lane:
                width = max((span.end - span.start) / end * WIDTH, LEAST)
                shapes.append(Rect(colour, LEFT + span.start / end * WIDTH, y, width, BAR))
    return Picture(title, LEFT + WIDTH + 20, height, shapes)


def _ruler(end: float, bottom: float) -> Iterator[Shape]:
    tick = next((tick for tick in TICKS if end / tick <= 8), TICKS[-1])
    for number in range(int(end / tick) + 1):
        x = LEFT + number * tick / end * WIDTH
        yield Rect("edge", x - 0.5, TOP - 6, 1, bottom - TOP)
        yield Label("faint", x, TOP - 11, f"{number * tick:g} s")


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    picture = lanes_picture(read(source))
    (picture.write_png if target.suffix == ".png" else picture.write_svg)(target)
