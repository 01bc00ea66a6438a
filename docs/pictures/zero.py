"""What each ZeRO stage holds of weights and gradients, and when it exchanges them, over a step of two micro-batches."""

from __future__ import annotations

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Drawing

LAYERS = 4
WHOLE, SHARD = 14, 4  # heights of a bar that is whole, and of one that is 1/N
LEFT, ROW, TOP = 140, 84, 74
# Phase -> (begin, end) on the time axis.
PHASES = {
    "start": (0, 52),
    "forward 1": (52, 172),
    "backward 1": (172, 332),
    "forward 2": (332, 452),
    "backward 2": (452, 612),
    "update": (612, 664),
}


def draw() -> Drawing:
    d = Drawing(824, 470, "ZeRO stages 0 to 3 over one step of two micro-batches")
    for name, (begin, end) in PHASES.items():
        d.text(LEFT + (begin + end) / 2, 34, name, FAINT, size=12, anchor="middle")
        d.line([(LEFT + begin, 44), (LEFT + begin, 398)], "edge")
    d.line([(LEFT + 664, 44), (LEFT + 664, 398)], "edge")
    for stage in range(4):
        y = TOP + ROW * stage
        d.text(20, y + 4, f"stage {stage}", INK, bold=True)
        d.text(LEFT - 10, y + 4, "weights", BLUE, size=11, anchor="end")
        d.text(LEFT - 10, y + 38, "gradients", GREEN, size=11, anchor="end")
        _weights(d, stage, y)
        _gradients(d, stage, y + 34)
    _legend(d)
    return d


def _weights(d: Drawing, stage: int, y: float) -> None:
    if stage == 0:
        _bar(d, 0, 664, y, WHOLE, BLUE)
    elif stage < 3:
        _bar(d, 0, 26, y, SHARD, BLUE)
        _mark(d, 26, y, ORANGE)
        _bar(d, 26, 612, y, WHOLE, BLUE)
        _bar(d, 612, 664, y, SHARD, BLUE)
    else:
        _bar(d, 0, 664, y, SHARD, BLUE)
        for begin, end in _layers():
            _bar(d, begin, end, y, WHOLE, BLUE)
            _mark(d, begin, y, ORANGE)


def _gradients(d: Drawing, stage: int, y: float) -> None:
    first = PHASES["backward 1"][0]
    if stage < 2:
        _bar(d, first, 624, y, WHOLE, GREEN)
        _mark(d, 624, y, PURPLE, double=stage == 0)
        _bar(d, 624, 664, y, WHOLE if stage == 0 else SHARD, GREEN)
        return
    _bar(d, first, 664, y, SHARD, GREEN)
    for begin, end in _layers("backward"):
        _bar(d, begin, end, y, WHOLE, GREEN)
        _mark(d, end, y, PURPLE)


def _layers(which: str = "") -> list[tuple[float, float]]:
    """When each layer is at work, in every pass whose name begins with `which`."""
    spans = []
    for name, (begin, end) in PHASES.items():
        if name[0] in "fb" and name.startswith(which):
            each = (end - begin) / LAYERS
            spans += [(begin + each * i + 3, begin + each * (i + 1) - 3) for i in range(LAYERS)]
    return spans


def _bar(d: Drawing, begin: float, end: float, y: float, height: float, colour: str) -> None:
    d.bar(LEFT + begin, y - height / 2, end - begin, height, colour)


def _mark(d: Drawing, x: float, y: float, colour: str, double: bool = False) -> None:
    for offset in (-2, 2) if double else (0,):
        d.bar(LEFT + x - 1.5 + offset, y - 13, 3, 26, colour)


def _legend(d: Drawing) -> None:
    y = 438
    x = 20
    for kind, colour, text, width in (
        ("bar", FAINT, "whole", 90),
        ("shard", FAINT, "1/N", 80),
        ("mark", ORANGE, "all-gather (compute dtype)", 214),
        ("mark", PURPLE, "reduce-scatter (reduce dtype)", 232),
        ("double", PURPLE, "all-reduce", 100),
    ):
        if kind in ("bar", "shard"):
            height = WHOLE if kind == "bar" else SHARD
            d.bar(x, y - height / 2, 24, height, colour)
        else:
            _mark(d, x - LEFT + 12, y, colour, double=kind == "double")
        d.text(x + 32, y + 4, text, FAINT, size=12)
        x += width
