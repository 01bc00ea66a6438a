"""What each schedule costs: time lost in the bubble, and activations alive at once.

    python -m benchmarks.pipeline_bubble

Read from the tables of the schedules, where a backward takes two forwards and stages work in lockstep. The time lost is
told as a part of the time at work. Exits with 1 where P divides M, and it is not the formula's. Needs no devices.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.common import show
from sharding.pipeline import makers
from sharding.pipeline.schedule import Schedule

FORWARD, BACKWARD = 1, 2
# stages, micro-batches: those of the published runs of BLOOM 176B and MT-NLG 530B last.
SIZES = [(2, 8), (4, 8), (4, 10), (4, 32), (4, 128), (8, 64), (12, 128), (35, 240)]
KINDS = [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 3)]
COLUMNS = ["schedule", "P", "V", "M", "ticks", "bubble", "(P-1)/(V·M)", "alive at once", "in stages' worth"]


def formula(schedule: Schedule) -> float:
    """The bubble in theory."""
    return (schedule.num_stages - 1) / (schedule.num_chunks * schedule.num_micro_batches)


def fits(schedule: Schedule) -> bool:
    """Whether the bubble is the formula's; interleaved, only where P divides M must it be."""
    must = schedule.num_chunks == 1 or schedule.num_micro_batches % schedule.num_stages == 0
    return bool(np.isclose(schedule.bubble(FORWARD, BACKWARD), formula(schedule))) or not must


def main() -> int:
    """Prints the table; how many bubbles are not the formula's."""
    schedules = [
        makers.make(name, stages, chunks, micro_batches) for stages, micro_batches in SIZES for name, chunks in KINDS
    ]
    rows = []
    for schedule in schedules:
        sizes = schedule.num_stages, schedule.num_chunks, schedule.num_micro_batches, schedule.num_ticks
        bubble = f"{schedule.bubble(FORWARD, BACKWARD):.2%}"
        alive = schedule.peak_live
        of_a_stage = f"{alive / schedule.num_chunks:.1f}"
        rows.append([schedule.name, *map(str, sizes), bubble, f"{formula(schedule):.2%}", str(alive), of_a_stage])
    show("Bubble, and chunk activations that a stage keeps", COLUMNS, rows)
    failed = sum(not fits(schedule) for schedule in schedules)
    print(f"{failed} bubbles are not the formula's." if failed else "Every bubble is the formula's where it must be.")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
