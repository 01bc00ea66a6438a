"""Checkpoints in orbax's format, which other JAX programs read and write: those of older versions are gone on from, and
any checkpoint can be exported.

Imported by what needs it only: orbax takes a second to start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.foreign import ARRAYS, META
from trainer.checkpoint.read import ArrayReader


class OrbaxReader:
    """The arrays of a checkpoint of format 1; as `trainer.checkpoint.read.ArrayReader`, but without checksums.

    Raises:
        Damaged: they are not described as they should be.
    """

    def __init__(self, path: Path) -> None:
        _hush()
        self._path = path
        self._reader = ocp.Checkpointer(_handler({jax.Array: ocp.type_handlers.ArrayHandler}))
        with _damaged():
            found = self._reader.metadata(path / ARRAYS).item_metadata
            self.index = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in found.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def place(
        self, wanted: Mapping[str, jax.ShapeDtypeStruct], dtype: np.dtype | None = None
    ) -> Iterator[tuple[str, jax.Array]]:
        """See `ArrayReader.place`: one after another."""
        for name, x in wanted.items():
            how = ocp.ArrayRestoreArgs(sharding=x.sharding, global_shape=x.shape, dtype=dtype or x.dtype)
            args = ocp.args.PyTreeRestore({name: x}, restore_args={name: how}, partial_restore=True)
            with _damaged():
                placed = self._reader.restore(self._path / ARRAYS, args=args)[name]
            yield name, placed


def meta(path: Path) -> dict[str, Any]:
    """What a checkpoint of format 1 says beside its arrays. Raises Damaged."""
    _hush()
    with _damaged(), ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
        return reader.restore(path / META)


def export(reader: ArrayReader, folder: Path) -> None:
    """Writes all arrays as one of orbax's own checkpoints, a flat mapping of names, verified and held one at a time.

    `ocp.PyTreeCheckpointer().restore(folder)` gives them to any program. The folder is there whole or not at all.

    Raises:
        ValueError: the folder is there already.
        Damaged, OSError: as `ArrayReader.host`.
    """
    _hush()
    arrays = {name: _Stored(name, reader.host) for name in reader.index}
    try:
        with ocp.Checkpointer(_handler({_Stored: _WriteStored})) as writer:
            writer.save(folder.absolute(), args=ocp.args.PyTreeSave(arrays))
    except BaseException:
        for left in folder.parent.glob(f"{folder.name}.orbax-checkpoint-tmp*"):
            shutil.rmtree(left, ignore_errors=True)
        raise


@dataclass(frozen=True)
class _Stored:
    """An array that is read when it is written."""

    name: str
    read: Callable[[str], np.ndarray]


class _WriteStored(ocp.type_handlers.NumpyHandler):
    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
        for value, info, arg in zip(values, infos, args or [ocp.SaveArgs()] * len(values), strict=True):
            for written in await super().serialize([value.read(value.name)], [info], [arg]):
                written.result()
        return []


def _handler(kinds: Mapping[Any, Any]) -> ocp.PyTreeCheckpointHandler:
    handlers = [(kind, handler()) for kind, handler in kinds.items()]
    return ocp.PyTreeCheckpointHandler(type_handler_registry=ocp.type_handlers.create_type_handler_registry(*handlers))


@contextlib.contextmanager
def _damaged() -> Iterator[None]:
    """What orbax and those below it raise of files that are not as they were, is of no common kind."""
    try:
        yield
    except Exception as error:
        raise Damaged(f"orbax says: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error


def _hush() -> None:
    """orbax logs every error that it also raises, and its progress."""
    logging.getLogger("absl").addFilter(_not_from_orbax)  # which takes a filter once


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname
