"""Where a run's numbers are written: metrics.jsonl always, TensorBoard and Weights & Biases when asked.

A sink takes (step, numbers) and knows nothing of training. Opening one for a resumed run takes back what
was written after the step that it resumes from, so that no step is told twice.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter

from trainer.errors import ConfigError
from trainer.lines import backwards, record_of
from trainer.settings import RunConfig

Values = Mapping[str, int | float]
_TENSORBOARD_FLUSH = 10.0
"""Seconds between two writes to the disk."""


class Sink(Protocol):
    def write(self, step: int, values: Values) -> None: ...

    def close(self) -> None: ...


class Sinks:
    """Several sinks as one. That one cannot write is told once, through `say`; it is asked again every time."""

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None]) -> None:
        self._sinks, self._say = sinks, say
        self._told: set[Sink] = set()

    def write(self, step: int, values: Values) -> None:
        for sink in self._sinks:
            with self._telling(sink):
                sink.write(step, values)

    def close(self) -> None:
        for sink in self._sinks:
            with self._telling(sink):
                sink.close()

    @contextlib.contextmanager
    def _telling(self, sink: Sink) -> Iterator[None]:
        """A full disk costs numbers, and no training."""
        try:
            yield
        except OSError as error:
            if sink not in self._told:
                self._told.add(sink)
                reason = error.strerror or error
                self._say(f"WARNING: {sink} cannot be written ({reason}). Training goes on, and it is tried again.")


def open_sinks(
    run: RunConfig,
    folder: Path,
    config: Mapping[str, Any],
    step: int,
    writes: bool = True,
    say: Callable[[str], None] = print,
) -> Sinks:
    """The sinks that `run` asks for, for a run that has finished `step` steps. `config` is shown by W&B.

    Args:
        say: where it is told what can no longer be written.
        writes: this process is the one that writes the run's files; another has no sinks.

    Raises:
        ConfigError: run.wandb is set, and wandb is not installed.
    """
    if not writes:
        return Sinks([], say)
    sinks: list[Sink] = []
    if run.wandb is not None:
        sinks.append(WandbSink(run, folder, config))  # first: what can fail comes before what rewinds
    if run.tensorboard:
        sinks.append(TensorBoardSink(folder / "tensorboard", step))
    return Sinks([*sinks, JsonlSink(folder / "metrics.jsonl", step)], say)


class JsonlSink:
    """One JSON object per line, `step` and `time` (Unix seconds) first, flushed at once; what is not finite is null."""

    def __init__(self, path: Path, step: int) -> None:
        _rewind(path, step)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._is_torn = False

    def write(self, step: int, values: Values) -> None:
        finite = {name: _finite(value) for name, value in values.items()}
        record = {"step": step, "time": round(time.time(), 3), **finite}
        line = (b"\n" if self._is_torn else b"") + json.dumps(record, allow_nan=False).encode() + b"\n"
        written = self._file.write(line)
        self._is_torn = written < len(line)
        if self._is_torn:  # a disk that is full takes a part first
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()

    def __str__(self) -> str:
        return str(self._path)


def last_record(path: Path) -> dict[str, Any] | None:
    """The last record of a trained step in a metrics.jsonl, if there is one."""
    records = (record for _, record in _records_backwards(path) if "step_seconds" in record)
    return next(records, None)


def _rewind(path: Path, step: int) -> None:
    """Cuts off what comes behind the last whole record up to `step`: the steps of a file never fall."""
    if path.exists():
        os.truncate(path, next((end for end, record in _records_backwards(path) if record["step"] <= step), 0))


def _records_backwards(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(the place at which it ends, a whole record of a step), the last one first."""
    for place, line in backwards(path) if path.exists() else ():
        record = record_of(line) if line.endswith(b"\n") else None
        if record is not None and isinstance(record.get("step"), int):
            yield place + len(line), record


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class TensorBoardSink:
    """Event files in a folder; TensorBoard hides what an earlier attempt wrote after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._num_files = 0
        self._flushed_at = 0.0
        self._file: RecordWriter | None = self._open()
        start = SessionLog(status=SessionLog.START)
        self._file.write(Event(step=step + 1, wall_time=time.time(), session_log=start).SerializeToString())

    def _open(self) -> RecordWriter:
        self._num_files += 1
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{self._num_files}"
        file = RecordWriter(str(self._folder / name))
        file.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        return file

    def write(self, step: int, values: Values) -> None:
        self._file = self._file or self._open()
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        try:
            event = Event(step=step, wall_time=time.time(), summary=Summary(value=scalars))
            self._file.write(event.SerializeToString())
            if time.monotonic() > self._flushed_at + _TENSORBOARD_FLUSH:
                self._file.flush()
                self._flushed_at = time.monotonic()
        except OSError:
            with contextlib.suppress(OSError):
                self.close()  # its readers go no further than half a record, so the next one begins another file
            raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __str__(self) -> str:
        return str(self._folder)


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

    def __str__(self) -> str:
        return "Weights & Biases"
