"""What happened when, beside what else: named spans of time in lanes, noted by any thread, to be drawn by others.

A lane is a resource that works on its own, such as the disk's reads or its writes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Times are seconds of `time.perf_counter`."""

    lane: str
    label: str
    start: float
    end: float


class Lanes:
    """Notes spans in the order in which they are reported."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        """Notes a span that is over; any thread may."""
        self.spans.append(span)  # atomic, as list.append is

    @contextlib.contextmanager
    def span(self, lane: str, label: str) -> Iterator[None]:
        """Notes how long its body takes, also of one that fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(Span(lane, label, start, time.perf_counter()))


class _NoLanes(Lanes):
    def add(self, span: Span) -> None:
        pass


NO_LANES = _NoLanes()
"""Notes nothing."""


def merged(spans: list[Span]) -> list[Span]:
    """One span for all of a lane and label: from the first start to the last end."""
    whole: dict[tuple[str, str], Span] = {}
    for span in spans:
        so_far = whole.get((span.lane, span.label), span)
        times = min(so_far.start, span.start), max(so_far.end, span.end)
        whole[span.lane, span.label] = Span(span.lane, span.label, *times)
    return list(whole.values())
