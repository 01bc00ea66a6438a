"""A run's folder: what was asked for, and what it ran on.

    config.yaml        the resolved config
    environment.json   one record per start: versions, host, devices, data and its sizes, commit
    metrics.jsonl, events.jsonl, rollbacks.jsonl, tensorboard/, checkpoints/, watchdog/    written by others

Takes the config as plain nested data, and knows nothing of training. One process per run opens the folder.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml

from trainer import config_yaml
from trainer.checkpoint.foreign import refusal
from trainer.config_source import read_file
from trainer.errors import ConfigError
from trainer.run_mark import CONFIG, ENVIRONMENT, HEADER

PACKAGES = ("meshwright", "jax", "jaxlib", "flax", "optax", "numpy", "tokenizers")


BECAUSE = "MESHWRIGHT_RESTARTED_BECAUSE"
"""Set by whoever starts a run again: how it ended before."""


class Change(Enum):
    """What a resumed run may do with a key."""

    REFUSED = "it would be another run"
    NOTED = "allowed, and said aloud"
    FREE = "does not change what is learned"


# The longest entry that a key starts with decides. What is named nowhere is REFUSED, so a new key is safe.
CHANGES = {
    "mesh": Change.FREE,
    "pipeline": Change.FREE,
    "zero": Change.FREE,
    "recompute": Change.FREE,
    "offload": Change.FREE,
    "elastic": Change.FREE,
    "failures": Change.FREE,
    "watchdog": Change.FREE,
    "check": Change.FREE,
    "run": Change.FREE,
    "train": Change.FREE,
    "train.steps": Change.NOTED,  # a decay that ends with the run moves
    "batch.micro": Change.FREE,
    "batch.global": Change.NOTED,
    "precision": Change.NOTED,
    "attention.implementation": Change.NOTED,  # the same function, rounded otherwise
    "optimizer": Change.NOTED,
    "optimizer.name": Change.REFUSED,
    "model.preset": Change.FREE,  # its fields are compared one by one
    "model.scan_layers": Change.FREE,
    "data.path": Change.FREE,  # the hash of its text tells what the run learns from
    "data.text_key": Change.FREE,  # likewise
    "data.tokenizer": Change.FREE,  # likewise, with a hash of its own
    "init": Change.NOTED,  # what a run has begun with stands in environment.json
    "data.cache": Change.FREE,
    "data.prefetch": Change.FREE,
}


IDENTITIES = {
    "data_hash": "the text behind data.path has changed",
    "tokenizer_hash": "data.tokenizer has other tokens",
}
"""What of a start's record has to be the same at the next one, and what is said where it is not."""


NAMES = ("data.path ", "data.text_key ", "data.tokenizer ")
"""What may have led to another text, in the words of what differs."""


class RunFolder:
    """`runs/NAME`, new or resumed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def check(self, config: Mapping[str, Any]) -> list[str]:
        """Whether `open` will be possible, as far as can be known without data, which takes long; leaves no file.

        Returns what the user should be told: settings that differ from the last start's, and may.

        Raises:
            ConfigError: the folder cannot be written, holds something else, or a run that learns something else.
        """
        try:
            notes = self._compare(_plain(config))
            self._try_to_write()
        except OSError as error:
            raise self._not_writable(error) from error
        return notes

    def open(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
        """Creates the folder, or checks that it holds this very run; writes config.yaml and environment.json.

        Returns what `check` returns.

        Raises:
            ConfigError: as `check` does, or the run was trained on other data.
        """
        notes = self.check(config)
        if self.has_begun():
            self._require_same_data(config, environment)
            environment = {**environment, "init": self._same_origin(config, environment.get("init"))}
        starts = [*self._starts(), environment]
        header = f"{HEADER}; to go on with it: meshwright train {self._file(CONFIG)}\n"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._write(CONFIG, header + config_yaml.dump(_plain(config)))
            self._write(ENVIRONMENT, json.dumps(starts, indent=2) + "\n")
        except OSError as error:
            raise self._not_writable(error) from error
        return notes

    def _not_writable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"run.dir={self.path} cannot be written ({error.strerror}); give another run.dir, or make it writable"
        )

    def _compare(self, config: dict[str, Any]) -> list[str]:
        """The notes on a folder that may be opened; see `check` for what it raises."""
        file = self._file("config.yaml")
        if not file.exists() or not self._is_ours(file):
            self._require_empty()
            return []
        if not self.has_begun():
            return []
        differences = list(_differences(read_file(file).tree, config))
        refused = [text for change, text in differences if change is Change.REFUSED]
        if refused:
            raise self._another_run(refused)
        return [text for change, text in differences if change is Change.NOTED]

    def _is_ours(self, file: Path) -> bool:
        """Whether a run has written this config.yaml, which is replaced: a user's own is not."""
        return self._file(ENVIRONMENT).exists() or file.read_bytes().startswith(HEADER.encode())

    def has_begun(self) -> bool:
        """Whether there is anything to mix up: a run that failed before its first step may be corrected."""
        metrics, checkpoints = self._file("metrics.jsonl"), self._file("checkpoints")
        return (metrics.exists() and metrics.stat().st_size > 0) or (
            checkpoints.exists() and any(checkpoints.iterdir())
        )

    def _require_empty(self) -> None:
        if not self.path.exists():
            return
        if foreign := refusal(self.path):
            raise ConfigError(f"run.dir: {foreign}; give another run.dir")
        if not self.path.is_dir() or any(entry.suffix != ".tmp" for entry in self.path.iterdir()):
            raise ConfigError(
                f"run.dir={self.path} is there already and is not a run's folder (it has no config.yaml of one); "
                "give another run.dir, or move it away"
            )

    def _try_to_write(self) -> None:
        """Permissions alone do not tell what a file system will take."""
        is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=self.path):
            pass
        if is_new:
            self.path.rmdir()

    def _require_same_data(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """By what was read, whatever its files are called now."""
        for key, what in IDENTITIES.items():
            known = [start[key] for start in self._starts() if start.get(key)]
            now = environment.get(key)
            if known and now and now != known[-1]:
                before, after = read_file(self._file(CONFIG)).tree.get("data", {}), _plain(config).get("data", {})
                moved = [text for _, text in _differences(before, after, "data.") if text.startswith(NAMES)]
                raise self._another_run([f"{what} ({known[-1]} -> {now})", *moved])

    def origin(self) -> Mapping[str, Any] | None:
        """What the run has begun with, where that is the checkpoint of another."""
        return next((start["init"] for start in reversed(self._starts()) if start.get("init")), None)

    def _same_origin(self, config: Mapping[str, Any], now: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What it begins with: that of the earlier starts. `now` is None where it has a checkpoint of its own."""
        before = self.origin()
        asked = config.get("init", {}).get("from")
        if asked and before is None:
            raise self._another_run([f"init.from={asked}, but it has begun without"])
        if now and before and now["identity"] != before["identity"]:
            raise self._another_run([f"init.from is another checkpoint than {before['from']}, with which it has begun"])
        return before

    def _another_run(self, differences: Sequence[str]) -> ConfigError:
        listed = "".join(f"\n  {text}" for text in differences)
        return ConfigError(
            f"{self.path} holds another run:{listed}\n"
            "Set these back to train it on; for a new run give another run.name or run.dir, or move the folder away. A "
            f"new run can begin with the weights of this one: init.from={self.path}"
        )

    def last_said(self, key: str) -> Any:
        """What the last start that tells it said of itself; None where none does."""
        with contextlib.suppress(OSError, ConfigError):  # what cannot be read is told by whoever opens the folder
            return next((start[key] for start in reversed(self._starts()) if start.get(key) is not None), None)
        return None

    def _starts(self) -> list[dict[str, Any]]:
        file = self._file("environment.json")
        if not file.exists():
            return []
        try:
            starts = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} is damaged ({error}); move it away") from error
        if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
            raise ConfigError(f"{file} is no list of starts; move it away")
        return starts

    def _file(self, name: str) -> Path:
        return self.path / name

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, even for a process that is killed here."""
        part = self._file(f".{name}.tmp")
        part.write_text(text, encoding="utf-8")
        part.replace(self._file(name))


def describe_environment(devices: Sequence[str], data_hash: str | None) -> dict[str, Any]:
    """The record of one start. `devices` as strings; `data_hash` is None where there is no data yet."""
    return {
        "start": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": {name: version(name) for name in PACKAGES},
        "devices": list(devices),
        "data_hash": data_hash,
        "git_commit": _git_commit(),
        "restarted_because": os.environ.get(BECAUSE),
    }


def version(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The working directory's commit, `-dirty` where it has been changed since; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode(errors="replace").strip()


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read back, so that two configs compare equal exactly when their files do."""
    return yaml.safe_load(yaml.safe_dump(dict(config), sort_keys=False))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[Change, str]]:
    """(what is allowed, "key was x and is y") for each key that differs, in the order of the new config.

    A key that only one of them has comes from another version of meshwright: it is noted, never refused.
    """
    for key in {**new, **old}:
        name = prefix + key
        if key not in old or key not in new:
            change = Change.FREE if _change(name) is Change.FREE else Change.NOTED
            yield change, f"{name} is {'new' if key in new else 'gone'}"
        elif isinstance(old[key], dict) and isinstance(new[key], dict):
            yield from _differences(old[key], new[key], f"{name}.")
        elif old[key] != new[key]:
            yield _change(name), f"{name} was {old[key]} and is {new[key]}"


def _change(key: str) -> Change:
    parts = key.split(".")
    prefixes = (".".join(parts[:size]) for size in range(len(parts), 0, -1))
    return next((CHANGES[prefix] for prefix in prefixes if prefix in CHANGES), Change.REFUSED)
