"""What each recompute policy keeps of a block for its backward pass, and what it computes again."""

from __future__ import annotations

from docs.pictures.drawing import FAINT, GREEN, INK, Drawing
from models.layers import SELECTIVE_NAMES

# In the order in which a block makes them: what the column is called, and the name that a policy knows it by.
ACTIVATIONS = (
    ("block's input", "input"),
    ("norm", ""),
    ("query", "query"),
    ("key", "key"),
    ("value", "value"),
    ("scores, softmax", ""),
    ("attention", "attention"),
    ("residual", "attention_residual"),
    ("norm", ""),
    ("gate", "gate"),
    ("up", "up"),
    ("silu(gate) · up", ""),
)
KEPT = {"none": None, "selective": {"input", *SELECTIVE_NAMES}, "full": {"input"}}
LEFT, CELL = 120, 55


def draw() -> Drawing:
    d = Drawing(820, 272, "Activations that each recompute policy keeps")
    for column, (label, _) in enumerate(ACTIVATIONS):
        # Two heights, so that neighbours have room.
        d.text(LEFT + CELL * column + 22, 34 if column % 2 else 54, label, FAINT, size=12, anchor="middle")
    for row, (policy, kept) in enumerate(KEPT.items()):
        y = 70 + 52 * row
        d.text(20, y + 24, policy, INK, mono=True, bold=True)
        for column, (_, name) in enumerate(ACTIVATIONS):
            is_kept = kept is None or name in kept
            d.box(
                LEFT + CELL * column, y, 44, 38, GREEN if is_kept else FAINT, filled=0.5 * is_kept, dashed=not is_kept
            )
    d.box(LEFT, 236, 20, 14, GREEN, filled=0.5)
    d.text(LEFT + 28, 248, "kept", FAINT, size=12)
    d.box(LEFT + 100, 236, 20, 14, FAINT, filled=0, dashed=True)
    d.text(LEFT + 128, 248, "computed again in the backward pass", FAINT, size=12)
    return d
