"""What a run's folder holds, as far as it can be read: of one that trains, was killed, or is of an older version."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from trainer import events
from trainer.errors import ConfigError
from trainer.folder_lock import Sign, is_held, last_sign
from trainer.lines import read_jsonl
from trainer.report.columns import MOST_STEPS, Columns, read_columns

CONFIG, ENVIRONMENT, METRICS, TOKENIZER = "config.yaml", "environment.json", "metrics.jsonl", "tokenizer.json"
_KINDS = TRAINING, EVALUATION = "loss", "eval_loss"
"""The field by which a record of metrics.jsonl is known."""
STARTS = ("start", "restart")


@dataclass(frozen=True)
class Event:
    """A line of events.jsonl."""

    time: float
    """Unix seconds."""
    name: str
    step: int
    more: Mapping[str, Any]

    @property
    def seconds_lost(self) -> float:
        lost = self.more.get("seconds_lost")
        return float(lost) if isinstance(lost, int | float) else 0.0


@dataclass(frozen=True, eq=False)
class Run:
    """All that there is."""

    path: Path
    config: Mapping[str, Any]
    """As it was resolved; empty where there is none that can be read."""
    environments: list[Mapping[str, Any]]
    """A record for each start."""
    events: list[Event]
    """Empty for a run that kept none."""
    training: Columns
    evaluations: Columns
    checkpoints: list[int]
    """Steps that can be gone on from, ascending."""
    seen: float | None
    """When it last wrote a number, Unix seconds."""
    sign: Sign | None = None
    """Its last sign of life."""
    held: bool | None = None
    """Whether a process has the folder to train in it; None where that cannot be known from here."""

    @property
    def name(self) -> str:
        return str(self.get("run.name", self.path.resolve().name))

    @property
    def step(self) -> int:
        """The last that anything is known of."""
        steps = [int(columns.step[-1]) for columns in (self.training, self.evaluations) if len(columns)]
        return max([*steps, *self.checkpoints, 0])

    @property
    def segments(self) -> list[list[Event]]:
        """The events of each start, with which they begin."""
        firsts = [k for k, event in enumerate(self.events) if event.name in STARTS]
        return [self.events[first:end] for first, end in zip_longest(firsts, firsts[1:])]

    @property
    def starts(self) -> list[Event]:
        return self.told(*STARTS)

    def told(self, *names: str) -> list[Event]:
        """The events of these names, in their order."""
        return [event for event in self.events if event.name in names]

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, by its name with dots."""
        found: Any = self.config
        for name in key.split("."):
            if not isinstance(found, Mapping) or found.get(name) is None:
                return default
            found = found[name]
        return found


def read_run(folder: Path) -> Run:
    """Raises ConfigError where there is no run's folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give the folder of a run, such as runs/quickstart")
    if not any((folder / name).exists() for name in (CONFIG, ENVIRONMENT, METRICS)):
        raise ConfigError(f"{folder} holds no {CONFIG}, so it is no run's folder; name one, such as runs/quickstart")
    found, sign = read_columns(folder / METRICS, _KINDS), last_sign(folder)
    return Run(
        path=folder,
        config=_config(folder / CONFIG),
        environments=_environments(folder / ENVIRONMENT),
        events=list(_events(folder / events.FILE)),
        training=found[TRAINING],
        evaluations=found[EVALUATION],
        checkpoints=_checkpoints(folder / "checkpoints"),
        seen=(folder / METRICS).stat().st_mtime if (folder / METRICS).exists() else None,
        sign=sign,
        held=is_held(folder) if sign is not None and sign.host == platform.node() else None,
    )


def began(environment: Mapping[str, Any]) -> float | None:
    """When the start of this record was, Unix seconds."""
    try:
        return datetime.fromisoformat(str(environment.get("start"))).timestamp()
    except ValueError:
        return None


def _config(file: Path) -> Mapping[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _environments(file: Path) -> list[Mapping[str, Any]]:
    try:
        records = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return []
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []


def _events(file: Path) -> Iterator[Event]:
    """Without lines that are cut, or not of this kind."""
    for record in read_jsonl(file) if file.exists() else ():
        try:
            time, name, step = float(record.pop("time")), str(record.pop("event")), int(record.pop("step"))
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
        if abs(step) <= MOST_STEPS:
            yield Event(time, name, step, record)


def _checkpoints(folder: Path) -> list[int]:
    """A step's folder takes its name when it is complete."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())
