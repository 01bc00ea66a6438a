"""A run's folder as a run would have left it: three starts, a kill, a skipped step, a failed save, a signal."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BEGAN = 1_796_000_000.0
CONFIG = """\
model: {layers: 2, hidden: 64}
batch: {global: 8, sequence: 128}
data: {path: corpus, holdout: 0.02}
train: {steps: 400}
run: {name: made}
"""
STEP_SECONDS = 0.5
PER_STEP = 8 * 128


def environment(time: float, **changes: Any) -> dict[str, Any]:
    return {
        "start": datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds"),
        "python": "3.11.7",
        "host": "node-0",
        "packages": {"meshwright": "0.1.0", "jax": "0.10.2"},
        "devices": ["gpu:NVIDIA H100"] * 8,
        "data_hash": "5fbfe266b488",
        "data": {"documents": 731, "held_out": 15, "tokens": 3_520_323, "vocab": 4096},
        "git_commit": "4be906b77c6c",
        **changes,
    }


def training(step: int, time: float | None, seconds: float = STEP_SECONDS, **changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"step": step} | ({} if time is None else {"time": time})
    return record | {
        "loss": 2 + 6 * math.exp(-step / 80),
        "grad_norm": 1 + 1 / step,
        "learning_rate": 1e-3,
        "tokens": step * PER_STEP,
        "tokens_per_second": PER_STEP / seconds,
        "step_seconds": seconds,
        "model_flops_per_second": 1e12,
        "loss_scale": 1.0,
        "skipped_steps": int(step >= 150),
        "mfu": 0.4,
        "host_bytes": 3 << 30,
        "device_bytes": 60 << 30,
        **changes,
    }


def event(time: float, name: str, step: int, **more: Any) -> dict[str, Any]:
    return {"time": BEGAN + time, "event": name, "step": step, **more}


EVENTS = [
    event(0, "start", 0, devices=8, processes=1),
    event(30, "compile", 1, seconds_lost=20.0),
    event(80, "save", 100, seconds_lost=2.0),
    event(90, "evaluation", 100, loss=3.7, seconds_lost=10.0),
    # Killed after step 130, seen last 105 s after the start.
    event(200, "restart", 100, devices=8, processes=1, lost_steps=30, seconds_lost=15.0, last_seen=BEGAN + 105),
    event(225, "compile", 101, seconds_lost=20.0),
    event(250, "skip", 150, loss=None, grad_norm=None, reason="not finite", seconds_lost=0.5),
    event(275, "failed_save", 200, reason="No space left on device"),
    event(275, "signal", 200, signal="SIGTERM"),
    event(276, "end", 200, reason="signal"),
    event(300, "restart", 200, devices=8, processes=1, lost_steps=0, seconds_lost=0.0, last_seen=BEGAN + 275),
    event(321, "compile", 201, seconds_lost=20.0),
]
"""One line of metrics.jsonl each ten steps; those of steps 101 to 130 were taken back by the first restart."""


def metrics(timed: bool = True) -> list[dict[str, Any]]:
    records = []
    for first, last, began in ((0, 100, 30.0), (100, 200, 225.0), (200, 400, 321.0)):
        records.append(training(first + 1, BEGAN + began if timed else None, 20.0))
        for step in range(first + 10, last + 1, 10):
            at = BEGAN + began + (step - first - 1) * STEP_SECONDS
            records.append(training(step, at if timed else None))
            if step in (100, 400):
                records.append({"step": step, "eval_loss": 2.5, "eval_bits_per_byte": 1.3})
    return records


def write(folder: Path, *, with_events: bool = True, records: list[dict[str, Any]] | None = None) -> Path:
    """The whole folder; `records` in the place of `metrics()`."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    starts = [environment(BEGAN + began) for began in (0, 200, 300)]
    (folder / "environment.json").write_text(json.dumps(starts))
    write_lines(folder / "metrics.jsonl", metrics(with_events) if records is None else records)
    if with_events:
        write_lines(folder / "events.jsonl", EVENTS)
    for step in (200, 400):
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    (folder / "checkpoints" / "410.0123abcd.writing").mkdir()
    return folder


def write_lines(file: Path, records: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
