"""Where a run's time went: how much of it trained new steps, and what the rest was lost to.

Goodput is the share of wall time, from the first start to the last sign of life, in which new steps were trained. Parts
are counted once and sum to the whole: what nothing tells of is a part too. Needs the run's events.jsonl.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trainer.page.bars import AMBER, BROWN, GREEN, GREY, LILAC, ORANGE, PINK, PURPLE, RED, TEAL
from trainer.report.folder import Event, Run, began
from trainer.report.kills import lost_steps, was_killed

NEW, OTHER = "new steps", "not told"
MEANINGS = {
    NEW: "goodput",
    "starting": "data made ready, the checkpoint read, from the start to the first step",
    "compiling": "the first step of each start, its compiling included",
    "evaluation": "on held-out text",
    "saving": "as far as training waited for it",
    "data": "waiting for the next batch",
    "skipped": "steps that changed nothing, as a number was not finite",
    "twice": "steps that no checkpoint held, trained again or to be",
    "down": "nothing ran, between one start and the next",
    OTHER: "steps not logged yet, the last save, what no event tells of",
}
COLOURS = dict(zip(MEANINGS, (GREEN, LILAC, PURPLE, TEAL, PINK, AMBER, BROWN, ORANGE, RED, GREY), strict=True))
PARTS = {
    "compile": "compiling",
    "evaluation": "evaluation",
    "save": "saving",
    "skip": "skipped",
    "restart": "twice",
    "rollback": "twice",
}
"""Whose `seconds_lost` is part of what."""


@dataclass(frozen=True)
class Goodput:
    """Seconds by what they were for, in the order of MEANINGS."""

    parts: dict[str, float]

    @property
    def wall(self) -> float:
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        return self.parts[NEW] / self.wall


def goodput(run: Run) -> Goodput | None:
    """None where too little is known: a run without events, or whose first step is not done."""
    if not run.starts or not len(run.training):
        return None
    wall = last_sign(run) - first_start(run)
    if wall <= 0:
        return None
    parts = dict.fromkeys(MEANINGS, 0.0)
    for event in run.events:
        if event.name in PARTS:
            parts[PARTS[event.name]] += event.seconds_lost
    segments = run.segments
    parts["starting"] = sum(map(_starting, segments))
    parts["down"] = sum(_down(before, after[0]) for before, after in pairwise(segments))
    parts["twice"] += _lost(run, lost_steps(run))
    parts["data"] = float(np.nansum(run.training["data_seconds"]))
    # A log's time is that since the one before it, with what else was done meanwhile.
    within = [save.seconds_lost for save in run.told("save") if save.step < run.training.step[-1]]
    logged_in_vain = _lost(run, int(run.training.step[-1]) - max(run.checkpoints, default=0))
    parts[NEW] = max(_logged(run) - sum(within) - parts["data"] - parts["skipped"] - logged_in_vain, 0.0)
    parts[OTHER] = max(wall - sum(parts.values()), 0.0)
    return Goodput(parts)


def first_start(run: Run) -> float:
    """Unix seconds; of a run that has started."""
    told = [start.time for start in run.starts]
    return min(told + [found for found in map(began, run.environments) if found is not None])


def last_sign(run: Run) -> float:
    """When it was last known to be alive, Unix seconds; of a run that has started."""
    logged = run.training.last("time")
    signs = [event.time for event in run.events[-1:]] + ([run.seen or 0.0] if logged is None else [logged])
    signs += [run.sign.time] if run.sign is not None else []
    return max(signs)


def _lost(run: Run, steps: int) -> float:
    """Seconds of the newest steps, where they were lost with the process that was killed."""
    return max(steps, 0) * (run.training.last("step_seconds") or 0.0) if was_killed(run) else 0.0


def _logged(run: Run) -> float:
    """Seconds of all steps that count, but for the first of each start, which compiles.

    Steps that were saved and not logged, as a kill came first, count as much as those before them.
    """
    step, seconds = run.training.step, np.nan_to_num(run.training["step_seconds"])
    num = np.diff(step, prepend=0)
    is_first = np.isin(step, [start.step + 1 for start in run.starts])
    before = np.concatenate([[0.0], seconds[:-1]])
    return float(np.where(is_first, (num - 1) * before, num * seconds).sum())


def _starting(segment: list[Event]) -> float:
    """From a start to where its first step begins; 0 where it did not come so far."""
    compiled = (event for event in segment if event.name == "compile")
    return next((max(event.time - event.seconds_lost - segment[0].time, 0.0) for event in compiled), 0.0)


def _down(before: list[Event], start: Event) -> float:
    """From the last sign of one start to the next start."""
    seen = start.more.get("last_seen")
    signs = [before[-1].time] + ([float(seen)] if isinstance(seen, int | float) else [])
    return max(start.time - max(signs), 0.0)
