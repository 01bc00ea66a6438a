"""`meshwright train` of which something hangs: python -m tests.trainer.failures.hanging WHAT ARGS..."""

from __future__ import annotations

import sys
import threading

import jax
import numpy as np

from trainer.cli import main
from trainer.data.batches import Batch, TrainBatches
from trainer.keeper import OnDevices
from trainer.step import Metrics

STEP = 3


def hang() -> None:
    threading.Event().wait()


def data() -> None:
    """The batch of a step never comes."""
    rows = TrainBatches.rows

    def reads_for_ever(batches: TrainBatches, step: int, low: int, high: int) -> Batch:
        if step == STEP:
            hang()
        return rows(batches, step, low, high)

    TrainBatches.rows = reads_for_ever  # type: ignore[method-assign]


def devices() -> None:
    """A program never ends on the devices."""
    step = OnDevices.step

    def computed_for_ever(x: np.ndarray) -> np.ndarray:
        hang()
        return x

    def never_ends(keeper: OnDevices, batch: object) -> Metrics:
        metrics = step(keeper, batch)  # type: ignore[arg-type]
        if int(keeper.state.step) <= STEP:
            return metrics
        return metrics._replace(loss=jax.jit(lambda x: jax.pure_callback(computed_for_ever, x, x))(metrics.loss))

    OnDevices.step = never_ends  # type: ignore[method-assign]


def nothing() -> None:
    """All is well."""


if __name__ == "__main__":
    what = sys.argv.pop(1)
    {"data": data, "devices": devices, "nothing": nothing}[what]()
    main()
