"""A vocabulary of 10 as two meshes hold it, with padding, and as a checkpoint does, without."""

from __future__ import annotations

import jax.numpy as jnp

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, PURPLE, Drawing
from sharding.layout import Layout, plan

VOCAB = 10
ONE_DEVICE = {"data": 1, "context": 1, "tensor": 1}
CELL, LEFT = 40, 246


def draw() -> Drawing:
    d = Drawing(820, 296, "From one mesh through a logical array to another mesh")
    saved = plan([VOCAB], ["vocab"], ONE_DEVICE | {"data": 2, "tensor": 2}, zero_axes=("data", "context"))
    loaded = plan([VOCAB], ["vocab"], ONE_DEVICE | {"data": 3}, zero_axes=("data", "context"))
    _mesh(d, 24, saved, "saved from", "data: 2, tensor: 2, ZeRO 1", BLUE)
    _arrow(d, 96, "padding off: trainer/logical.py")
    d.text(20, 144, "checkpoint", INK, bold=True)
    d.text(20, 162, "parameters.head.weight", GREEN, size=12, mono=True)
    for i in range(VOCAB):
        _cell(d, LEFT + i * CELL, 128, str(i), GREEN)
    _arrow(d, 176, "padding on")
    _mesh(d, 210, loaded, "loaded on", "data: 3, ZeRO 3", PURPLE)
    return d


def _mesh(d: Drawing, y: float, layout: Layout, what: str, mesh: str, colour: str) -> None:
    (dim,) = layout.dims
    d.text(20, y + 18, what, INK, bold=True)
    d.text(20, y + 36, mesh, colour, size=12, mono=True)
    stored = layout.store(jnp.arange(1, VOCAB + 1))  # 0 is padding
    for i, value in enumerate(stored.tolist()):
        device = i // dim.shard
        x = LEFT + i * CELL + 14 * device
        _cell(d, x, y, str(value - 1) if value else "", colour if value else FAINT)
        if i % dim.shard == 0:
            tensor, data = divmod(device, dim.zero_shards)
            place = f"tensor {tensor}, " if dim.model_shards > 1 else ""
            d.text(x, y + 48, f"{place}data {data}", FAINT, size=11)


def _arrow(d: Drawing, y: float, text: str) -> None:
    d.line([(LEFT + 200, y - 6), (LEFT + 200, y + 24)], FAINT, arrow=True)
    d.text(LEFT + 214, y + 12, text, FAINT, size=12)


def _cell(d: Drawing, x: float, y: float, text: str, colour: str) -> None:
    d.box(x, y, CELL - 4, 30, colour, dashed=not text, filled=0.13 if text else 0, radius=3)
    d.text(x + (CELL - 4) / 2, y + 20, text, colour, size=13, mono=True, anchor="middle")
