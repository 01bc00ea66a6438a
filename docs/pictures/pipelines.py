"""What three stages hold, and what they do in one tick of the steady phase."""

from __future__ import annotations

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Drawing

STAGES, LAYERS, TICK = 3, 9, 5
TOP, ROW, BOX = 66, 78, 38
EMBED, FORWARD, HEAD, BACKWARD, EMBED_BACK = (312, 54), (394, 92), (516, 54), (598, 118), (744, 54)  # x and width
PARTS = (
    (EMBED, "embed"),
    (FORWARD, "forward"),
    (HEAD, "head"),
    (BACKWARD, "backward"),
    (EMBED_BACK, "embed back"),
)


def draw() -> Drawing:
    d = Drawing(824, 366, "What three pipeline stages hold, and what they do in one tick")
    d.text(20, 34, "each stage holds", FAINT, size=12)
    for (x, width), name in PARTS:
        d.text(x + width / 2, 34, name, FAINT, size=12, anchor="middle")
    for stage in range(STAGES):
        _held(d, stage)
        _units(d, stage)
    for x, width in (EMBED, HEAD, EMBED_BACK):
        d.box(x - 7, TOP - 9, width + 14, ROW * (STAGES - 1) + BOX + 18, ORANGE, filled=0, dashed=True)
    _messages(d)
    _legend(d)
    return d


def _y(stage: int) -> float:
    return TOP + ROW * stage


def _held(d: Drawing, stage: int) -> None:
    y, each = _y(stage), LAYERS // STAGES
    d.text(20, y + 24, f"stage {stage}", INK, bold=True)
    _named(d, 82, y, 96, BLUE, f"layers {each * stage} to {each * (stage + 1) - 1}")
    for x, part in ((186, "E"), (226, "H")):
        _named(d, x, y, 34, PURPLE, f"{part}/{STAGES}")
    d.line([(286, TOP - 20), (286, _y(STAGES - 1) + BOX + 12)], "edge")


def _units(d: Drawing, stage: int) -> None:
    """By the formulas of 1F1B: forward of micro-batch t - s, backward of t - 2(P - 1) + s."""
    last = STAGES - 1
    leaves, returns = TICK - last, TICK - 2 * last
    for (x, width), colour, micro_batch in (
        (EMBED, PURPLE, TICK),
        (FORWARD, BLUE, TICK - stage),
        (HEAD, PURPLE, leaves),
        (BACKWARD, GREEN, returns + stage),
        (EMBED_BACK, PURPLE, returns),
    ):
        _named(d, x, _y(stage), width, colour, str(micro_batch))


def _messages(d: Drawing) -> None:
    for stage in range(STAGES - 1):
        above, below = _y(stage) + BOX + 3, _y(stage + 1) - 3
        for (x, width), way in ((FORWARD, 1), (BACKWARD, -1)):
            d.line([(x + width / 2, above), (x + width / 2, below)][::way], ORANGE, arrow=True)


def _named(d: Drawing, x: float, y: float, width: float, colour: str, text: str) -> None:
    d.box(x, y, width, BOX, colour)
    d.text(x + width / 2, y + 24, text, colour, size=12, anchor="middle")


def _legend(d: Drawing) -> None:
    y = 322
    d.text(20, y, "Numbers are micro-batches, of 1F1B at tick 5. E is the embedding, H the head.", FAINT, size=12)
    d.box(20, y + 14, 20, 14, ORANGE, filled=0, dashed=True)
    d.text(48, y + 26, "all-reduce over all stages, as embedding and head are spread over them", FAINT, size=12)
    d.line([(548, y + 12), (548, y + 30)], ORANGE, arrow=True)
    d.text(562, y + 26, "sent to a neighbour, used a tick later", FAINT, size=12)
