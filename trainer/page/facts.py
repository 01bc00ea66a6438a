"""The numbers that stand first on a page, each with what has to be known with it."""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """A number as it is written."""

    name: str
    value: str
    note: str
