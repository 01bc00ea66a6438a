"""One block under tensor and sequence parallelism: which dim is cut where, and the four exchanges."""

from __future__ import annotations

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, Drawing

# What stands in the block from left to right: (kind, text, smaller text).
# split: this device's part of the sequence; exchange: a collective; heads: this device's columns and heads.
STAGES = (
    ("split", "norm", "[B, S/t, D]"),
    ("exchange", "all-gather", "enter"),
    ("heads", "query, key, value", "D → H/t"),
    ("heads", "attention", "[B, S, H/t, K]"),
    ("heads", "out", "H/t → D"),
    ("exchange", "reduce-scatter", "leave"),
    ("split", "add", "[B, S/t, D]"),
)
MLP = (
    ("split", "norm", "[B, S/t, D]"),
    ("exchange", "all-gather", "enter"),
    ("heads", "gate, up", "D → F/t"),
    ("heads", "silu(gate) · up", "[B, S, F/t]"),
    ("heads", "down", "F/t → D"),
    ("exchange", "reduce-scatter", "leave"),
    ("split", "add", "[B, S/t, D]"),
)
COLOURS = {"split": BLUE, "exchange": ORANGE, "heads": GREEN}
WIDTHS = {"split": 80, "exchange": 106, "heads": 116}


def draw() -> Drawing:
    d = Drawing(820, 284, "A decoder block under tensor and sequence parallelism")
    _row(d, 34, "attention", STAGES)
    _row(d, 146, "MLP", MLP)
    y = 262
    for x, colour, text in (
        (20, BLUE, "1/t of the sequence, all features"),
        (280, GREEN, "the whole sequence, 1/t of heads or features"),
        (600, ORANGE, "exchange over tensor"),
    ):
        d.box(x, y - 11, 20, 14, colour)
        d.text(x + 28, y, text, FAINT, size=12)
    return d


def _row(d: Drawing, y: float, name: str, stages: tuple[tuple[str, str, str], ...]) -> None:
    d.text(20, y, name, INK, bold=True)
    x, gap = 20.0, 11
    for i, (kind, text, below) in enumerate(stages):
        width = WIDTHS[kind]
        d.box(x, y + 14, width, 34, COLOURS[kind], dashed=kind == "exchange", filled=0 if kind == "exchange" else 0.13)
        d.text(x + width / 2, y + 35, text, COLOURS[kind], size=12, anchor="middle")
        d.text(x + width / 2, y + 66, below, FAINT, size=11, anchor="middle", mono=True)
        if i:
            d.line([(x - gap, y + 31), (x - 1, y + 31)], FAINT, arrow=True)
        x += width + gap
