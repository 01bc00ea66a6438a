"""Which tiles of attention's scores the kernels compute: causal, with packed documents, and with a sliding window."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from docs.pictures.drawing import BLUE, FAINT, INK, Drawing
from pallas_kernels.flash.live_tiles import live_tiles
from pallas_kernels.flash.spec import Spec, Tile, Tiles

TOKENS, BLOCK = 512, 32
TILE = Tile(BLOCK, BLOCK, 4, 2)
DOCUMENTS = (140, 215, 61, 96)
CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "packed documents": {"segments": np.repeat(np.arange(1, 5), DOCUMENTS)[None].astype(np.int32)},
    "a window of 128": {"window": 128},
}
WHOLE, PART = 0.75, 0.3
"""How full the colour of a tile is that is seen whole, and of one that needs a mask."""
CELL, TOP, LEFT, BETWEEN = 15, 62, 24, 28


def draw() -> Drawing:
    side = TOKENS // BLOCK * CELL
    d = Drawing(824, TOP + side + 48, "Tiles of attention's scores that the kernels compute")
    d.text(LEFT, 26, "scores of 512 queries (down) along 512 keys, in tiles of 32 x 32", INK, bold=True)
    for number, (name, options) in enumerate(CASES.items()):
        _matrix(d, LEFT + number * (side + BETWEEN), name, **options)
    x = LEFT
    for filled, meaning in ((WHOLE, "seen whole: no mask"), (PART, "seen in part: masked")):
        d.box(x, d.height - 30, 12, 12, BLUE, filled=filled, radius=1)
        d.text(x + 20, d.height - 20, meaning, FAINT, size=12)
        x += 190
    d.text(x, d.height - 20, "all others are not computed", FAINT, size=12)
    return d


def _matrix(d: Drawing, left: int, name: str, window: int | None = None, segments: np.ndarray | None = None) -> None:
    spec = Spec(1.0, True, window, None, Tiles(TILE, TILE, TILE), True)
    ids = None if segments is None else (jnp.asarray(segments), jnp.asarray(segments))
    table = np.asarray(live_tiles(spec, TILE, TOKENS, TOKENS, jnp.int32(0), ids))[0]
    computed = int((table[:, 3] - table[:, 0]).sum())
    d.text(left, TOP - 12, f"{name}: {computed} of {len(table) ** 2} tiles", INK, size=12)
    d.box(left - 1.5, TOP - 1.5, len(table) * CELL + 1.5, len(table) * CELL + 1.5, FAINT, filled=0, radius=1)
    for row, (first, full_first, full_end, end) in enumerate(table.tolist()):
        for column in range(first, end):
            filled = WHOLE if full_first <= column < full_end else PART
            d.box(left + column * CELL, TOP + row * CELL, CELL - 1.5, CELL - 1.5, BLUE, filled=filled, radius=1)
