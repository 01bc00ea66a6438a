"""`meshwright plan --published FILE.csv`: predicts runs that others published, for people or as JSON."""

from __future__ import annotations

import dataclasses
import json as json_format
from pathlib import Path

from trainer.planner.gpu import Gpu, load
from trainer.planner.published import Prediction, predict, read
from trainer.tables import make_table, wide_console


def show_published(file: Path, gpu: str | None, gpus_per_node: int, json: bool) -> None:
    """Prints a prediction for each row of a table like `published_runs.csv`, on its own kind of GPU unless told.

    Raises:
        ConfigError: a row lacks something, or there is no such GPU.
    """
    kind: Gpu | None = load(gpu) if gpu else None
    predictions = [predict(run, kind, gpus_per_node) for run in read(file)]
    if json:
        print(json_format.dumps([dataclasses.asdict(prediction) for prediction in predictions], indent=2))
    else:
        _print(predictions)


def _print(predictions: list[Prediction]) -> None:
    table = make_table(None, ["run"], ["TFLOP/s per GPU", "seconds per step", "GiB per GPU", "fits"])
    for one in predictions:
        numbers = (one.tflops_per_gpu, one.seconds_per_step, one.gigabytes_per_gpu)
        table.add_row(one.id, *(f"{number:,.1f}" for number in numbers), "yes" if one.fits else "no")
    wide_console().print(table)
