"""Four documents, end to end, cut into three windows of 8 tokens: what `trainer.data.packing` makes of them."""

from __future__ import annotations

import numpy as np

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Drawing
from trainer.data.indexed import IndexedDataset
from trainer.data.packing import PackedSequences

LENGTHS = (6, 3, 8, 5)  # each with its end-of-document token
SEQUENCE = 8
COLOURS = (BLUE, GREEN, ORANGE, PURPLE)
END = "⏎"
CELL = 29
WINDOW_LEFT, WINDOW_GAP = 76, 250


def draw() -> Drawing:
    d = Drawing(844, 258, "Packing of documents into windows")
    stream = [(document, place) for document, length in enumerate(LENGTHS) for place in range(length)]
    d.text(20, 42, "stream", INK, bold=True)
    _cell(d, WINDOW_LEFT + 4, 24, END, FAINT)
    for i, (document, place) in enumerate(stream, 1):
        _cell(d, WINDOW_LEFT + 4 + i * CELL, 24, _token(document, place), COLOURS[document])
    packed = PackedSequences(_dataset(), range(len(LENGTHS)), SEQUENCE, start=0)
    names = ("tokens", "targets", "segments", "positions", "weights")
    for row, name in enumerate(names):
        d.text(20, 120 + 30 * row, name, INK, size=12, mono=True)
    for window in range(len(packed)):
        left = WINDOW_LEFT + 20 + window * WINDOW_GAP
        d.text(left, 88, f"window {window}", FAINT, size=12)
        item = packed[window]
        real = item["segments"] > 0
        for row, name in enumerate(names):
            for i, value in enumerate(item[name]):
                place = window * SEQUENCE + i  # of the target; the input stands before it
                document = stream[place][0] if real[i] else 0
                text = f"{value:g}"
                if row < 2 and real[i]:
                    at = place - (name == "tokens")
                    text = END if at < 0 else _token(*stream[at])
                _cell(d, left + i * CELL, 102 + 30 * row, text, COLOURS[document] if real[i] else FAINT)
    return d


def _dataset() -> IndexedDataset:
    lengths = np.array(LENGTHS, np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    tokens = np.arange(1, ends[-1] + 1, dtype=np.int32)
    offsets = (ends - lengths) * tokens.itemsize
    return IndexedDataset(tokens, lengths, offsets, np.arange(len(lengths) + 1, dtype=np.int64))


def _token(document: int, place: int) -> str:
    """Such as b2, the second token of the second document."""
    return END if place == LENGTHS[document] - 1 else f"{'abcd'[document]}{place + 1}"


def _cell(d: Drawing, x: float, y: float, text: str, colour: str) -> None:
    d.box(x, y, CELL - 3, 26, colour, dashed=colour == FAINT, filled=0 if colour == FAINT else 0.13, radius=3)
    d.text(x + (CELL - 3) / 2, y + 18, text, colour, size=12, mono=True, anchor="middle")
