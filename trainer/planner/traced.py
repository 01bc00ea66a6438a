"""The memory of a step as far as tracing it tells: exact where the closed forms only count.

Knows nothing of the compiler, which sets aside what neither of them knows.
"""

from __future__ import annotations

import dataclasses

from trainer.description import Description
from trainer.planner.estimate import Estimate
from trainer.planner.memory import Memory


def traced_stages(estimated: Estimate, exact: Description) -> tuple[Memory, ...]:
    """Bytes of a GPU of each pipeline stage: the closed forms, with what the traced step tells in their place."""
    return tuple(_stage(closed, estimated, exact) for closed in estimated.memory)


def _stage(closed: Memory, estimated: Estimate, exact: Description) -> Memory:
    arrangement = estimated.arrangement
    master = exact.memory.optimizer / (1 + arrangement.moments)
    held = dataclasses.replace(
        closed,
        weights=exact.memory.weights,
        master=master,
        optimizer=exact.memory.optimizer - master,
        # Of streamed layers, not all that is gathered at once is there at the fullest moment.
        gathered=closed.gathered if arrangement.streamed else exact.memory.gathered,
    )
    # What the allocator wastes is a part of all the rest.
    wasted = (arrangement.practice.allocator - 1) * (held.total - held.overhead)
    return dataclasses.replace(held, overhead=wasted + estimated.gpu.reserved_bytes)
