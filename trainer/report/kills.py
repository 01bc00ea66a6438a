"""Processes that were killed, as far as a run's folder shows it: whoever is killed tells nothing.

A start of the run that did not tell how it ended was killed, or its machine failed: once another start follows, or its
folder is in no process' hands any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from trainer.report.columns import MOST_STEPS
from trainer.report.folder import Event, Run

ENDS = ("end", "watchdog")
"""Events that say how a start of the run ended."""
_REASON = "no end was told: a process was killed, or a machine failed"


def was_killed(run: Run) -> bool:
    """Whether the newest start was."""
    return bool(run.starts) and run.held is False and not _has_ended(run.segments[-1])


def lost_steps(run: Run) -> int:
    """Steps that were trained, and that no checkpoint holds."""
    return max(_reached(run) - max(run.checkpoints, default=0), 0)


def kills(run: Run) -> Iterator[Event]:
    """One for each start that was killed: when it was last seen, and at which step."""
    segments = run.segments
    for segment, following in zip_longest(segments, segments[1:]):
        if _has_ended(segment):
            continue
        if following is not None:
            restart = following[0]
            step = restart.step + int(_number(restart.more.get("lost_steps"), 0))
            yield Event(_number(restart.more.get("last_seen"), segment[-1].time), "killed", step, {"reason": _REASON})
        elif was_killed(run):
            seen = segment[-1].time if run.sign is None else run.sign.time
            yield Event(seen, "killed", _reached(run), {"lost_steps": lost_steps(run), "reason": _REASON})


def _has_ended(segment: list[Event]) -> bool:
    return any(event.name in ENDS for event in segment)


def _reached(run: Run) -> int:
    return run.step if run.sign is None else max(run.sign.step, run.step)


def _number(value: Any, otherwise: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_STEPS
    return float(value) if is_number else otherwise
