"""Spans are noted with their times, by any thread."""

from __future__ import annotations

import threading

import pytest

from trainer.offload.lanes import NO_LANES, Lanes, Span, merged


def test_a_span_lasts_as_long_as_its_body() -> None:
    lanes = Lanes()
    with lanes.span("update", "outer"), lanes.span("update", "inner"):
        pass
    inner, outer = lanes.spans
    assert (inner.label, outer.label) == ("inner", "outer")
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_what_fails_is_noted_too() -> None:
    lanes = Lanes()
    with pytest.raises(ZeroDivisionError), lanes.span("update", "bucket 0"):
        raise ZeroDivisionError
    assert [span.label for span in lanes.spans] == ["bucket 0"]


def test_threads_note_side_by_side() -> None:
    lanes = Lanes()

    def note(lane: str) -> None:
        for index in range(100):
            with lanes.span(lane, str(index)):
                pass

    threads = [threading.Thread(target=note, args=[lane]) for lane in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lane in "abcd":
        assert [span.label for span in lanes.spans if span.lane == lane] == [str(index) for index in range(100)]


def test_no_lanes_keep_nothing() -> None:
    with NO_LANES.span("update", "bucket 0"):
        pass
    assert NO_LANES.spans == []


def test_parts_of_one_label_merge() -> None:
    parts = [
        Span("read", "a", 1.0, 2.0),
        Span("read", "b", 1.5, 3.0),
        Span("read", "a", 0.5, 1.2),
        Span("write", "a", 4, 5),
    ]
    assert merged(parts) == [Span("read", "a", 0.5, 2.0), Span("read", "b", 1.5, 3.0), Span("write", "a", 4, 5)]
