"""The rollbacks of a run, in rollbacks.jsonl of its folder, and the batches that are left out since.

The batch of a step is a function of the step and of this file alone: a resumed run, on whatever mesh, trains on the
same samples, and never on one of those left out. Knows nothing of what a batch holds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.errors import ConfigError
from trainer.lines import read_jsonl

FILE = "rollbacks.jsonl"


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """One of them: training went on from `back_to`, without `batches`."""

    step: int
    """Finished when it was noticed."""
    back_to: int
    """The step of the checkpoint; 0: the start of the run."""
    batches: list[int]
    """Left out from then on: the first of the run is 0, and the one left out is counted too."""
    global_batch: int
    """Sequences in each of them: batch n is of the samples from n x global_batch on."""
    reason: str
    time: float = field(default_factory=time.time)


class Rollbacks:
    """Those of the run in `folder`, oldest first. All processes make the same calls, and `writes` in one of them.

    Raises:
        ConfigError: the file has a line that is no rollback.
    """

    def __init__(self, folder: Path, writes: bool) -> None:
        self._file = folder / FILE
        self._writes = writes
        records = read_jsonl(self._file) if self._file.exists() else ()
        try:
            self.done = [Rollback(**record) for record in records]
        except TypeError as error:
            raise ConfigError(f"{self._file} has a line that is no rollback ({error}); remove that line") from error

    def add(self, rollback: Rollback) -> None:
        """Writes it down; it is on disk when this returns."""
        self.done.append(rollback)
        if self._writes:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(rollback)) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def left_out(self, global_batch: int) -> list[int]:
        """The batches that no step trains on, ascending: those with a sample that was left out.

        `global_batch` is what the run has now, and may have been another when they were left out.
        """
        return sorted({batch for rollback in self.done for batch in _same_samples(rollback, global_batch)})


def batch_of(step: int, left_out: Sequence[int]) -> int:
    """The batch of a step, both from 0 on, where these are left out (ascending)."""
    for batch in left_out:
        if batch > step:
            break
        step += 1
    return step


def _same_samples(rollback: Rollback, global_batch: int) -> Iterator[int]:
    for batch in rollback.batches:
        low, high = batch * rollback.global_batch, (batch + 1) * rollback.global_batch
        yield from range(low // global_batch, -(-high // global_batch))
