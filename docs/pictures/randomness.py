"""Dropout's mask of a small batch, and which device makes which part of it on two meshes: the bits are the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from docs.pictures.drawing import BLUE, FAINT, INK, ORANGE, Drawing
from sharding.randomness import keep_mask

SAMPLES, POSITIONS, FEATURES, RATE = 2, 8, 14, 0.3
CELL = 11
# Title, and for each device the samples and positions that it holds.
MESHES = (
    ("data: 2", [(slice(s, s + 1), slice(0, POSITIONS)) for s in range(SAMPLES)]),
    ("tensor: 2", [(slice(0, SAMPLES), slice(p, p + POSITIONS // 2)) for p in (0, POSITIONS // 2)]),
)


def draw() -> Drawing:
    d = Drawing(820, 218, "The same dropout mask on two meshes")
    for (title, devices), left in zip(MESHES, (96, 468), strict=True):
        d.text(left, 34, title, INK, mono=True, bold=True)
        for device, (samples, positions) in enumerate(devices):
            _part(d, left, samples, positions, (BLUE, ORANGE)[device])
    d.text(20, 98, "positions", FAINT, size=11)
    d.text(20, 112, "    ↓", FAINT, size=11)
    d.bar(96, 182, CELL - 2, CELL - 2, BLUE)
    d.text(114, 191, "device 0", FAINT, size=12)
    d.bar(204, 182, CELL - 2, CELL - 2, ORANGE)
    d.text(222, 191, "device 1", FAINT, size=12)
    d.text(312, 191, "filled: the feature is kept", FAINT, size=12)
    return d


def _part(d: Drawing, left: float, samples: slice, positions: slice, colour: str) -> None:
    """What one device makes, by itself."""
    mask = np.asarray(
        keep_mask(
            jax.random.key(0),
            jnp.arange(SAMPLES)[samples],
            jnp.arange(POSITIONS)[positions],
            features=FEATURES,
            rate=RATE,
        )
    )
    for (sample, position, feature), kept in np.ndenumerate(mask):
        x = left + (samples.start + sample) * (FEATURES * CELL + 14) + feature * CELL
        y = 70 + (positions.start + position) * CELL + (8 if positions.start + position >= POSITIONS // 2 else 0)
        if kept:
            d.bar(x, y, CELL - 2, CELL - 2, colour)
    for sample in range(SAMPLES)[samples]:
        d.text(left + sample * (FEATURES * CELL + 14), 60, f"sample {sample}", FAINT, size=11)
