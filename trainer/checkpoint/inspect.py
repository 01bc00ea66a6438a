"""What is in a run's folder of checkpoints, whether it is what was written, and how two of them differ.

For people who look at them: nothing here needs a device, or the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.draft import DELETING, WRITING
from trainer.checkpoint.foreign import is_of_format_1, whose
from trainer.checkpoint.header import HEADER, Header
from trainer.checkpoint.read import open_arrays
from trainer.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """A folder among the checkpoints of a run."""

    path: Path
    num_bytes: int
    """On disk."""
    header: Header | None = None
    problem: str | None = None
    """Why it cannot be loaded, where that is known without reading its arrays."""


def entries(checkpoints: Checkpoints) -> list[Entry]:
    """The checkpoints by step, then what is no checkpoint."""
    folder = checkpoints.folder
    steps = [_entry(folder / str(step)) for step in checkpoints.steps()]
    named = {entry.path for entry in steps}
    others = sorted(path for path in folder.iterdir() if path not in named) if folder.is_dir() else []
    return steps + [Entry(path, _size(path), problem=_no_step(path)) for path in others]


def _entry(path: Path) -> Entry:
    if is_of_format_1(path):
        return Entry(path, _size(path), problem="complete, of an older version: without checksums")
    try:
        header = Header.read(path)
        with open_arrays(path):  # what describes them, and nothing of them
            missing = [name for n in range(header.num_processes) if not (path / (name := f"{n}.bin")).is_file()]
        if missing:
            raise Damaged(f"{missing[0]} is missing")
        return Entry(path, _size(path), header)
    except Damaged as error:
        program = None if (path / HEADER).exists() else whose(path)
        return Entry(path, _size(path), problem=f"a checkpoint of {program}" if program else f"damaged: {error}")
    except (ConfigError, OSError) as error:
        return Entry(path, _size(path), problem=str(error))


def _no_step(path: Path) -> str:
    if path.is_symlink():
        return "a link, which is not followed"
    if path.suffix in (WRITING, DELETING):
        doing = "written" if path.suffix == WRITING else "removed"
        return f"being {doing}, or left by a killed process"
    return "not a checkpoint"


def _size(path: Path) -> int:
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def damage(path: Path) -> Iterator[str]:
    """What is wrong with a checkpoint, all of which is read: a line for each array."""
    try:
        with open_arrays(path) as reader:
            for name in reader.index:
                try:
                    reader.verify(name)
                except (Damaged, OSError) as error:
                    yield str(error)
    except (Damaged, ConfigError, OSError) as error:
        yield str(error)


@dataclass(frozen=True)
class Difference:
    """How an array differs between two checkpoints."""

    name: str
    what: str


def compare(one: Path, other: Path) -> Iterator[Difference]:
    """The arrays that differ, and by how much; two of them are in memory at a time.

    Raises:
        Damaged: one of them is.
        ConfigError: a newer meshwright has written one of them.
    """
    with open_arrays(one) as mine, open_arrays(other) as theirs:
        for name in sorted({*mine.index, *theirs.index}):
            if name not in mine.index or name not in theirs.index:
                yield Difference(name, f"only in {(one if name in mine.index else other).name}")
            elif (kinds := (_kind(mine.index[name]), _kind(theirs.index[name])))[0] != kinds[1]:
                yield Difference(name, f"{kinds[0]} and {kinds[1]}")
            elif (what := _difference(mine.host(name), theirs.host(name))) is not None:
                yield Difference(name, what)


def _kind(array: object) -> str:
    return f"{array.dtype}{list(array.shape)}"  # type: ignore[attr-defined]


def _difference(one: np.ndarray, other: np.ndarray) -> str | None:
    """How many elements differ in any bit, and the largest difference beside the largest element."""
    differ = one.reshape(-1).view(np.uint8) != other.reshape(-1).view(np.uint8)
    count = int(differ.reshape(-1, one.dtype.itemsize).any(axis=1).sum())
    if not count:
        return None
    a, b = one.astype(np.float64), other.astype(np.float64)
    most, scale = float(np.abs(a - b).max()), float(np.abs(a).max())
    relative = f" ({most / scale:.2g} of the largest)" if scale else ""
    return f"{count:,} of {one.size:,} differ, by at most {most:.3g}{relative}"
