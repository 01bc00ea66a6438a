"""What a checkpoint says of itself, in `checkpoint.json`, the file that makes it one."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.sealed import read_sealed
from trainer.errors import ConfigError

HEADER = "checkpoint.json"
FORMAT = 2
"""Of the files of a checkpoint. 1 was orbax's, of zarr arrays: `trainer.checkpoint.orbax`."""


@dataclass(frozen=True)
class Header:
    step: int
    saved: str
    """When, in local time (ISO 8601)."""
    num_processes: int
    """As many have written files of their own."""
    meta: Mapping[str, Any]
    """What the run says of it; `meshwright` is the version that wrote it."""
    metrics: Mapping[str, float]
    """What was measured of this step; may be empty."""
    format: int

    @classmethod
    def of(cls, step: int, num_processes: int, meta: Mapping[str, Any], metrics: Mapping[str, float]) -> Header:
        """One for a checkpoint that is complete now."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(step, now, num_processes, meta, metrics, FORMAT)

    @classmethod
    def read(cls, path: Path) -> Header:
        """Of the checkpoint in this folder.

        Raises:
            ConfigError: a newer meshwright has written it.
            Damaged: it is not what was written.
        """
        content = read_sealed(path / HEADER)
        try:
            if content["format"] > FORMAT:
                writer = content["meta"].get("meshwright", "of another version")
                raise ConfigError(
                    f"{path} was written by a newer meshwright ({writer}; format {content['format']}, and this one "
                    f"reads up to {FORMAT}); install that version to go on from it"
                )
            header = cls(**content)
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{HEADER} is not one ({error})") from None
        numbers, mappings = (header.step, header.num_processes), (header.meta, header.metrics)
        if not all(isinstance(x, int) for x in numbers) or not all(isinstance(x, dict) for x in mappings):
            raise Damaged(f"{HEADER} is not one")
        return header

    def plain(self) -> dict[str, Any]:
        """What JSON can hold."""
        return asdict(self)
