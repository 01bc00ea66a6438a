"""What can wait where: on the GPU, in its host's memory, or in a file on NVMe."""

from __future__ import annotations

from typing import get_args, get_type_hints

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, Drawing
from trainer.offload.config import OffloadConfig

KINDS = {
    "activations": "what blocks keep for backward",
    "parameters": "weights, gradients of the layers",
    "optimizer": "float32 weights and moments",
}
"""What each key of `offload` moves."""
TIERS = {"none": "GPU", "host": "host memory", "nvme": "NVMe"}
"""By the value of a key."""
LEFT, CELL, WIDTH = 270, 185, 160


def draw() -> Drawing:
    d = Drawing(820, 252, "What can wait on the GPU, in host memory, or on NVMe")
    choices = get_type_hints(OffloadConfig)
    for column, tier in enumerate(TIERS.values()):
        d.text(LEFT + CELL * column + WIDTH / 2, 36, tier, INK, anchor="middle", bold=True)
    for row, (key, kind) in enumerate(KINDS.items()):
        y = 54 + 62 * row
        d.text(20, y + 19, key, INK, mono=True, bold=True)
        d.text(20, y + 38, kind, FAINT, size=12)
        for column, value in enumerate(TIERS):
            can = value in get_args(choices[key])
            x = LEFT + CELL * column
            d.box(x, y, WIDTH, 44, (GREEN if column else BLUE) if can else FAINT, filled=0.4 * can, dashed=not can)
            if can:
                d.text(x + WIDTH / 2, y + 27, value, INK, mono=True, anchor="middle")
            if can and column:
                d.line([(x - 24, y + 16), (x - 3, y + 16)], FAINT, arrow=True)
                d.line([(x - 3, y + 28), (x - 24, y + 28)], FAINT, arrow=True)
    return d
