"""Stacked bars: what a whole is made of, as widths in per cent of a scale; and the colours to choose from.

One hue for what belongs together; all can be told apart on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BLUE, TEAL, GREEN, PURPLE, LILAC = "#3f8ff0", "#1b9aaa", "#2da44e", "#8250df", "#bf94ff"
ORANGE, AMBER, PINK, BROWN, GREY, RED = "#e8863a", "#f2b866", "#d1618f", "#a8713c", "#8d96a0", "#cf4a4a"


@dataclass(frozen=True)
class Part:
    """One kind of what a whole is made of."""

    name: str
    meaning: str
    amount: float
    colour: str
    share: float
    """Of the whole."""
    width: float
    """Of the scale, in per cent."""


def stack(
    amounts: Mapping[str, float], meanings: Mapping[str, str], colours: Mapping[str, str], scale: float
) -> list[Part]:
    """A bar of `amounts`, of which `scale` is as wide as the page."""
    whole = sum(amounts.values())
    return [
        Part(name, meanings[name], amount, colours[name], amount / whole, 100 * amount / scale)
        for name, amount in amounts.items()
    ]
