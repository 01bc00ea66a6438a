"""Checkpoints: logical arrays by name, and what run they are of, in one folder per step.

A checkpoint does not know on what mesh it was saved, and loads onto any. It is there whole or not at all: orbax writes
beside the folder, in the background, and renames last. Knows nothing of models, optimizers or layouts.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from trainer.errors import ConfigError, OffloadError

ARRAYS, META = "arrays", "meta"  # the two parts of a checkpoint, each a folder of its own
# On several hosts process 0 says which steps are there, so that all go on from the same one.
STEPS = ocp.path.step.standard_name_format(single_host_load_and_broadcast=True)
STEPS_ALONE = ocp.path.step.standard_name_format()  # the same names, and nobody to be asked through the devices
SAVE_TIMEOUT = 3 * 3600  # seconds; a large state on a slow disk takes its time, and dead hosts are noticed elsewhere
MOST_SHOWN = 8  # differences between a checkpoint and a model
# Where all differences begin alike: what they mean.
CAUSES = {
    "optimizer.": "another optimizer: set optimizer.name back to what it was saved with",
    "": "another model: set model.* and optimizer.name back to what it was saved with",
}


Read = Callable[[Collection[str]], dict[str, jax.Array]]
"""Names -> the arrays of a checkpoint, each placed as it was asked for beforehand."""


@dataclass(frozen=True, eq=False)
class Later:
    """An array that is made when it is written, and dropped once it is."""

    abstract: jax.ShapeDtypeStruct
    make: Callable[[], jax.Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.abstract.shape

    @property
    def dtype(self) -> np.dtype:
        return self.abstract.dtype


def made(arrays: Mapping[str, jax.Array | Later]) -> dict[str, jax.Array]:
    """The arrays, with those that are made later made now."""
    return {name: array.make() if isinstance(array, Later) else array for name, array in arrays.items()}


class _WriteLater(ocp.type_handlers.ArrayHandler):
    """Writes arrays that are made later, one after another, so that one at a time is in memory."""

    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
        for value, info, arg in zip(values, infos, args or [ocp.SaveArgs()] * len(values), strict=True):
            array = value.make()
            for written in await super().serialize([array], [info], [arg]):
                written.result()
            array.delete()
        return []


def _arrays_handler() -> ocp.PyTreeCheckpointHandler:
    # Without a store of their metadata, which each call would write anew; it is only checked against the arrays.
    kinds = {jax.Array: ocp.type_handlers.ArrayHandler, Later: _WriteLater}
    handlers = [(kind, handler(array_metadata_store=None)) for kind, handler in kinds.items()]
    return ocp.PyTreeCheckpointHandler(type_handler_registry=ocp.type_handlers.create_type_handler_registry(*handlers))


class Checkpoints:
    """The checkpoints of one run, `folder`/STEP each; the newest `keep` stay. All processes make the same calls.

    Making one touches no file; leftovers of a killed process are removed by the first save.
    """

    def __init__(self, folder: str | Path, keep: int) -> None:
        self.folder = Path(folder).absolute()
        self.keep = keep
        self._manager: ocp.CheckpointManager | None = None
        self._saving: int | None = None
        for name in ("absl", "asyncio"):
            logging.getLogger(name).addFilter(_not_from_orbax)
        _hide_late_writes()

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending. A process that is alone touches no device."""
        names = STEPS if jax.distributed.is_initialized() else STEPS_ALONE
        return sorted(found.step for found in names.find_all(self.folder))

    def newest(self) -> int | None:
        """The step of the newest complete checkpoint."""
        return max(self.steps(), default=None)

    def save(self, step: int, arrays: Mapping[str, jax.Array | Later], meta: Mapping[str, Any]) -> None:
        """Begins to write a checkpoint, once the one before is written; does nothing where this step has one.

        Takes the arrays over: it returns, and deletes them, when each process has its shards in host memory, where they
        stay until they are written. What is to be made later is written when it returns. `meta` is anything JSON can
        hold.

        Raises:
            OSError: the save before this one failed.
            OffloadError: what is to be made later could not be read.
        """
        self.wait()
        if self._manager is None:
            self._manager = self._open()
        if step in self.steps():
            return
        self._saving = step
        parts = {ARRAYS: ocp.args.PyTreeSave(dict(arrays)), META: ocp.args.JsonSave(dict(meta))}
        try:
            self._manager.save(step, args=ocp.args.Composite(**parts), force=True)
        except Exception as error:
            self._give_up(error)
        for array in arrays.values():
            if isinstance(array, jax.Array):
                array.delete()  # orbax would hold the devices' memory until all is written

    def wait(self) -> None:
        """Until the last save is complete.

        Raises:
            OSError: it could not be written. Older checkpoints are as they were, and a later save may succeed.
        """
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> NoReturn:
        assert self._manager is not None
        self._manager.close()
        self._manager = None  # the next save makes a new one, which removes what this one left
        if isinstance(error, OffloadError):  # of what was to be saved, not of where
            raise error
        raise OSError(
            f"The checkpoint of step {self._saving} could not be written to {self.folder}: {_reason(error)} "
            f"({_free(self.folder)} free there). Older ones are as they were."
        ) from error

    def meta(self, step: int) -> dict[str, Any]:
        """What `save` was given beside the arrays.

        Raises:
            ConfigError: there is no complete checkpoint of this step.
        """
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            return reader.restore(self._path(step) / META)

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
            ConfigError: there is no complete checkpoint of this step, or it does not hold these arrays.
        """
        path = self._path(step) / ARRAYS
        with ocp.Checkpointer(_arrays_handler()) as reader:
            found = reader.metadata(path).item_metadata
            if found is None:
                raise ConfigError(f"{self._path(step)} is damaged; remove it, to go on from an older one")
            differences = _differences(_describe(found), _describe(abstract))
            if differences:
                raise ConfigError(_another_model(self._path(step), differences))
            wanted = {name: abstract[name] for name in (abstract if names is None else names)}
            how = {
                name: ocp.ArrayRestoreArgs(sharding=x.sharding, global_shape=x.shape, dtype=dtype or x.dtype)
                for name, x in wanted.items()
            }
            return reader.restore(path, args=ocp.args.PyTreeRestore(wanted, restore_args=how, partial_restore=True))

    def remove_after(self, step: int) -> None:
        """Removes the complete checkpoints of later steps, the newest first, once the last save is complete.

        Raises:
            OSError: the last save failed, or one could not be removed.
        """
        self.close()
        later = [found for found in self.steps() if found > step]
        if jax.process_index() == 0:
            for found in reversed(later):
                path = self.folder / STEPS.build_name(found)
                # Never half there: a name that orbax takes for the leftovers of a save, before anything in it goes.
                shutil.rmtree(path.rename(f"{path}.orbax-checkpoint-tmp-removed"))
        if jax.distributed.is_initialized():
            multihost_utils.sync_global_devices("checkpoints are removed")

    def close(self) -> None:
        """Waits for the last save. Raises what `wait` raises."""
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(self.keep),
            step_name_format=STEPS,
            single_host_load_and_broadcast=True,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(timeout_secs=SAVE_TIMEOUT),
        )
        handlers = {ARRAYS: _arrays_handler(), META: ocp.JsonCheckpointHandler()}
        return ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    def _path(self, step: int) -> Path:
        steps = self.steps()
        if step not in steps:
            there = f"there are those of steps {steps}" if steps else "there is none yet"
            raise ConfigError(f"{self.folder} has no complete checkpoint of step {step}; {there}")
        return self.folder / STEPS.build_name(step)


def _describe(arrays: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}


def _differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Name -> what is wrong with it, for each array that is not the same in both."""
    both = [name for name in found if name in wanted and found[name] != wanted[name]]
    return (
        {name: f"is {found[name]} there and {wanted[name]} here" for name in both}
        | {name: f"is {wanted[name]} here and not there" for name in wanted if name not in found}
        | {name: f"is {found[name]} there and not here" for name in found if name not in wanted}
    )


def _another_model(path: Path, differences: Mapping[str, str]) -> str:
    cause = next(text for prefix, text in CAUSES.items() if all(name.startswith(prefix) for name in differences))
    parameters_first = sorted(differences, key=lambda name: (not name.startswith("parameters."), name))
    lines = [f"\n  {name} {differences[name]}" for name in parameters_first]
    more = f"\n  and {len(lines) - MOST_SHOWN} more" if len(lines) > MOST_SHOWN else ""
    return (
        f"{path} is a checkpoint of {cause}, or give another run.name or run.dir to start anew.\n"
        f"What differs:{''.join(lines[:MOST_SHOWN])}{more}"
    )


def _reason(error: Exception) -> str:
    """The operating system's own words where tensorstore has wrapped them."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(code[1])) if code else str(error)


def _free(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / 1e9:.3g} GB"


def _not_from_orbax(record: logging.LogRecord) -> bool:
    """orbax logs every error that it also raises, and its progress; the terminal is the run's display.

    asyncio speaks for those of orbax's tasks that failed after the one whose error is raised.
    """
    is_orbaxs = f"{os.sep}orbax{os.sep}" in record.pathname
    return not is_orbaxs and ".orbax-checkpoint-tmp" not in record.getMessage()


@cache
def _hide_late_writes() -> None:
    """Of a save that fails, the error is raised; of its other files, each would print a traceback when it is done.

    They come back to orbax's event loop, which the first error has closed.
    """
    show = sys.unraisablehook

    def show_others(event: sys.UnraisableHookArgs) -> None:
        if not (isinstance(event.exc_value, RuntimeError) and str(event.exc_value) == "Event loop is closed"):
            show(event)

    sys.unraisablehook = show_others
