"""Checkpoints: logical arrays by name, and what run they are of, in one folder per step.

A checkpoint does not know on what mesh it was saved, and loads onto any. It is there whole or not at all: it is written
beside its folder, in the background, and renamed last. Knows nothing of models, optimizers or layouts.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from trainer.checkpoint.agree import found_by_any, of_first, token
from trainer.checkpoint.blocks import settle
from trainer.checkpoint.compare import another_model, differences
from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.draft import Draft, remove, remove_leftovers
from trainer.checkpoint.foreign import is_of_format_1, refusal
from trainer.checkpoint.header import HEADER, Header
from trainer.checkpoint.keep import Keep
from trainer.checkpoint.later import Later
from trainer.checkpoint.read import ArrayReader, open_arrays
from trainer.checkpoint.write import Snapshot
from trainer.errors import ConfigError, NotFiniteError, OffloadError
from trainer.processes.membership import is_first, process_count, process_index

if TYPE_CHECKING:
    from trainer.checkpoint.orbax import OrbaxReader

_STEP = re.compile("0|[1-9][0-9]{0,9}")


class Checkpoints:
    """The checkpoints of one run, `folder`/STEP each. All processes make the same calls.

    Making one touches no file; leftovers of a killed process are removed by the first save.

    Args:
        keep: which stay once another one is complete, or how many of the newest.
    """

    def __init__(self, folder: str | Path, keep: Keep | int) -> None:
        self.folder = Path(folder).absolute()
        self.keep = Keep(keep) if isinstance(keep, int) else keep
        self._saving: tuple[int, Future[None]] | None = None
        self._failure: OSError | None = None  # of the last save
        self._is_told = False
        self.seconds: float | None = None
        """How long the last complete save took, from its beginning until it was on the disk."""

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending. A process that is alone touches no device."""
        return of_first(self._steps())

    def _steps(self) -> list[int]:
        """As this process finds them."""
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self.folder.iterdir() if path.is_dir() and not path.is_symlink()]
            return sorted(int(name) for name in names if _STEP.fullmatch(name))
        return []

    def require(self, step: int) -> int:
        """The step, if there is a complete checkpoint of it.

        Raises:
            ConfigError: there is none.
        """
        steps = self.steps()
        if step not in steps:
            there = f"there are those of steps {steps}" if steps else "there is none yet"
            raise ConfigError(f"{self.folder} has no complete checkpoint of step {step}; {there}")
        return step

    def newest_here(self) -> int | None:
        """The newest as this process finds it, where the others cannot be asked."""
        return max(self._steps(), default=None)

    def newest(self) -> int | None:
        """The step of the newest complete checkpoint."""
        return max(self.steps(), default=None)

    def save(
        self,
        step: int,
        arrays: Mapping[str, jax.Array | Later],
        meta: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Begins to write a checkpoint, once the one before is written; does nothing where this step has one.

        Takes the arrays over: it returns, and deletes them, when each process has its shards in host memory, where they
        stay until they are written. What is to be made later is written when it returns. `meta` is anything JSON can
        hold; `metrics` is what was measured of this step.

        Raises:
            OSError: this save failed, or the one before did and nobody was told.
            NotFiniteError: an array has a number that is not finite. Nothing is written, in any process.
            OffloadError: what is to be made later could not be read.
        """
        self._finish()
        if not self._is_told:
            self._tell()
        self._failure, self._is_told = None, False
        if step in self.steps():
            return
        if is_first():  # before others have the token, and begin theirs
            remove_leftovers(self.folder)
        began = time.monotonic()
        draft = Draft(self.folder, step, token(), process_index(), process_count())
        snapshot = Snapshot(arrays)
        try:
            draft.begin(snapshot)
        except OSError as error:
            self._failure = error if isinstance(error, OffloadError) else self._described(step, error)
        bad = found_by_any(snapshot.not_finite, list(snapshot.kinds))
        self._tell()
        if bad:
            draft.abandon()
        self._require_finite(step, bad)
        saving: Future[None] = Future()
        complete = partial(self._complete, draft, snapshot, dict(meta), dict(metrics or {}), began)
        Thread(target=settle, args=(saving, complete), name="save").start()  # waited for where a script ends
        self._saving = step, saving

    def _require_finite(self, step: int, bad: Sequence[str]) -> None:
        if not bad:
            return
        more = f" and {len(bad) - 1} other arrays" if len(bad) > 1 else ""
        newest = self.newest()
        kept = "nothing is saved yet" if newest is None else f"the newest checkpoint is that of step {newest}"
        raise NotFiniteError(
            f"step {step} is not saved: {bad[0]}{more} hold numbers that are not finite, and so would all that is "
            f"trained from them ({kept}); use a lower learning rate"
        )

    def _complete(
        self, draft: Draft, snapshot: Snapshot, meta: Mapping[str, Any], metrics: Mapping[str, float], began: float
    ) -> None:
        draft.complete(snapshot, meta, metrics)
        self.seconds = time.monotonic() - began
        if is_first():
            for step in self.unwanted():
                with contextlib.suppress(OSError):  # it is tried again after the next save
                    remove(self.folder / str(step))

    def reasons(self) -> dict[int, list[str]]:
        """Why each checkpoint stays, of those that can tell their step; none, where it may go."""
        measured: dict[int, Mapping[str, float]] = {}
        for step in self._steps():
            with contextlib.suppress(ConfigError, Damaged, OSError):
                measured[step] = Header.read(self.folder / str(step)).metrics
        return self.keep.reasons(measured)

    def unwanted(self) -> list[int]:
        """The steps of those that may go; never what is damaged, or not ours."""
        return [step for step, why in self.reasons().items() if not why]

    def wait(self) -> None:
        """Until the last save is complete.

        Raises:
            OSError: it could not be written, which is said at every call until another one is begun. Older checkpoints
                are as they were, and a later save may succeed.
        """
        self._finish()
        self._tell()

    def look(self) -> None:
        """Raises what `wait` raises, where that is known by now."""
        if self._saving is None or self._saving[1].done():
            self.wait()

    def _finish(self) -> None:
        if self._saving is None:
            return
        (step, saving), self._saving = self._saving, None
        try:
            saving.result()
        except OSError as error:
            self._failure = self._described(step, error)

    def _tell(self) -> None:
        if self._failure is not None:
            self._is_told = True
            raise self._failure

    def _described(self, step: int, error: OSError) -> OSError:
        described = OSError(
            f"The checkpoint of step {step} could not be written to {self.folder}: {error.strerror or error} "
            f"({_free(self.folder)} free there). Older ones are as they were."
        )
        described.__cause__ = error
        return described

    def header(self, step: int) -> Header:
        """What the checkpoint says of itself.

        Raises:
            ConfigError: there is no complete checkpoint of this step, or it is damaged, or of a newer version.
        """
        with self._advising(step) as path:
            return Header.read(path)

    def meta(self, step: int) -> dict[str, Any]:
        """What `save` was given beside the arrays. Raises what `header` raises."""
        with self._advising(step) as path:
            if is_of_format_1(path):
                from trainer.checkpoint import orbax

                return orbax.meta(path)
            return dict(Header.read(path).meta)

    def restore(
        self,
        step: int,
        abstract: Mapping[str, jax.ShapeDtypeStruct],
        names: Collection[str] | None = None,
        dtype: np.dtype | None = None,
    ) -> dict[str, jax.Array]:
        """The arrays, all or those of these names, as they are or of this dtype. Each process reads its shards.

        `abstract` says of every array of a checkpoint what its name, shape and dtype have to be, and its sharding.

        Raises:
            ConfigError: there is no complete checkpoint of this step, it does not hold these arrays, or it is damaged.
            OSError: the disk does not give it.
        """
        with self._advising(step) as path, open_checkpoint(path) as reader:
            different = differences(reader.index, abstract)
            if different:
                raise ConfigError(another_model(path, different))
            wanted = {name: abstract[name] for name in (abstract if names is None else names)}
            return dict(reader.place(wanted, dtype))

    def remove_after(self, step: int) -> None:
        """Removes the complete checkpoints of later steps, the newest first, once the last save is done with.

        Raises:
            OSError: one could not be removed.
        """
        self._finish()
        later = [found for found in self.steps() if found > step]
        if is_first():
            for found in reversed(later):
                remove(self.folder / str(found))
        token()  # until process 0 has done so

    def close(self) -> None:
        """Waits for the last save. Raises what `wait` raises."""
        self.wait()

    @contextlib.contextmanager
    def _advising(self, step: int) -> Iterator[Path]:
        """The folder of a checkpoint; where that is found to be damaged, what to do."""
        path = self.folder / str(self.require(step))
        try:
            yield path
        except Damaged as error:
            if not path.exists():
                raise ConfigError(f"{path} was removed meanwhile, as newer ones are complete; try again") from None
            if not (path / HEADER).exists() and (foreign := refusal(path)):
                raise ConfigError(f"{foreign}; move it away, or give another run.name or run.dir") from None
            older = [other for other in self._steps() if other < step]
            way_out = f"go on from step {max(older)}" if older else "start anew"
            raise ConfigError(
                f"{path} is damaged: {error}. Remove it to {way_out}: meshwright checkpoints {self.folder.parent} "
                f"--remove {step} --yes"
            ) from None


def open_checkpoint(path: Path) -> ArrayReader | OrbaxReader:
    """The arrays of the complete checkpoint in this folder. Raises Damaged, or ConfigError for a newer version's."""
    if is_of_format_1(path):
        from trainer.checkpoint import orbax

        return orbax.OrbaxReader(path)
    return open_arrays(path)


def _free(folder: Path) -> str:
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free / 1e9:.3g} GB"
