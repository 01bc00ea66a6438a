"""Where a run's numbers are written: metrics.jsonl always, TensorBoard and Weights & Biases when asked.

A sink takes (step, numbers) and knows nothing of training. Opening one for a resumed run takes back what
was written after the step that it resumes from, so that no step is told twice.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tensorboardX import SummaryWriter

from trainer.errors import ConfigError
from trainer.settings import RunConfig

Values = Mapping[str, int | float]


class Sink(Protocol):
    def write(self, step: int, values: Values) -> None: ...

    def close(self) -> None: ...


class Sinks:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def write(self, step: int, values: Values) -> None:
        for sink in self._sinks:
            sink.write(step, values)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def open_sinks(run: RunConfig, folder: Path, config: Mapping[str, Any], step: int, writes: bool = True) -> Sinks:
    """The sinks that `run` asks for, for a run that has finished `step` steps. `config` is shown by W&B.

    Args:
        writes: this process is the one that writes the run's files; another has no sinks.

    Raises:
        ConfigError: run.wandb is set, and wandb is not installed.
    """
    if not writes:
        return Sinks([])
    sinks: list[Sink] = []
    if run.wandb is not None:
        sinks.append(WandbSink(run, folder, config))  # first: what can fail comes before what rewinds
    if run.tensorboard:
        sinks.append(TensorBoardSink(folder / "tensorboard", step))
    return Sinks([*sinks, JsonlSink(folder / "metrics.jsonl", step)])


class JsonlSink:
    """One JSON object per line, `step` and `time` (Unix seconds) first, flushed at once; what is not finite is null."""

    def __init__(self, path: Path, step: int) -> None:
        _rewind(path, step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, values: Values) -> None:
        finite = {name: _finite(value) for name, value in values.items()}
        record = {"step": step, "time": round(time.time(), 3), **finite}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file such as metrics.jsonl, without a last line that a killed process left half written."""
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def last_record(path: Path) -> dict[str, Any] | None:
    """The last record of a trained step in a metrics.jsonl, if there is one."""
    records = read_jsonl(path) if path.exists() else ()
    return next(iter(deque((record for record in records if "step_seconds" in record), maxlen=1)), None)


def _rewind(path: Path, step: int) -> None:
    """Keeps only whole lines up to `step`; the old file stands until the new one is complete."""
    if not path.exists():
        return
    kept = path.with_name(path.name + ".tmp")
    records = (record for record in read_jsonl(path) if isinstance(record.get("step"), int))
    with kept.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records if record["step"] <= step)
        file.flush()
        os.fsync(file.fileno())
    kept.replace(path)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class TensorBoardSink:
    """Event files in a folder; TensorBoard hides what an earlier attempt wrote after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=step + 1, flush_secs=10)

    def write(self, step: int, values: Values) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A Weights & Biases run, continued by a resumed run through the id kept in the run's folder.

    W&B's own step cannot go back, so `step` is logged as a metric of its own and is the x axis of all others.
    """

    def __init__(self, run: RunConfig, folder: Path, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "run.wandb is set, and wandb is not installed; pip install 'meshwright[wandb]', or leave run.wandb out"
            ) from error
        id_file = folder / "wandb_id"
        options = {"name": run.name, "dir": str(folder), "config": dict(config), "resume": "allow"}
        if id_file.exists():
            options["id"] = id_file.read_text(encoding="utf-8")
        self._run = wandb.init(**(options | (run.wandb or {})))
        id_file.write_text(self._run.id, encoding="utf-8")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Values) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()
