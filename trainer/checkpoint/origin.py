"""The checkpoint of another run that a new one begins with: its weights, or all of its state.

Knows nothing of models: which arrays are wanted, and what the others begin as, it is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trainer.checkpoint.agree import of_first
from trainer.checkpoint.checkpoints import Checkpoints, open_checkpoint
from trainer.checkpoint.compare import differences, listed
from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.foreign import is_of_format_1, refusal
from trainer.checkpoint.header import HEADER, Header
from trainer.errors import ConfigError

FOLDER = "checkpoints"
"""Of a run's folder."""
WEIGHTS = "parameters."
"""How the names of weights begin."""


@dataclass(frozen=True)
class Origin:
    """One complete checkpoint."""

    path: Path
    is_whole: bool
    """Whether moments, the step and all else are taken too, and not the weights alone."""
    meta: Mapping[str, Any]
    """What its run said of it."""
    saved_step: int

    @property
    def step(self) -> int:
        """At which the new run begins."""
        return self.saved_step if self.is_whole else 0

    @property
    def tokens(self) -> int:
        """That the new run counts as trained on."""
        return int(self.meta.get("tokens", 0)) if self.is_whole else 0

    @property
    def run(self) -> Path | None:
        """The folder of its run, where it still lies there."""
        return self.path.parents[1] if self.path.parent.name == FOLDER else None

    def record(self) -> dict[str, Any]:
        """What is told of it in the run's environment.json."""
        return {
            "from": str(self.path),
            "step": self.saved_step,
            "state": "all" if self.is_whole else "weights",
            "identity": self.identity,
            "data_hash": self.meta.get("data_hash"),
        }

    @property
    def identity(self) -> str:
        """Hex; of what it holds, wherever it lies: its checksums are in what is hashed."""
        files = sorted(self.path.glob("*.json"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def restore(self, abstract: Mapping[str, jax.ShapeDtypeStruct], names: Collection[str]) -> dict[str, jax.Array]:
        """The arrays of these names, each as `abstract` says; what is not taken is zero.

        Raises:
            ConfigError: it does not hold what `abstract` has, or is damaged.
            OSError: the disk does not give it.
        """
        taken = [name for name in names if self._takes(name)]
        with _advising(self.path), open_checkpoint(self.path) as reader:
            found = {name: array for name, array in reader.index.items() if self._takes(name)}
            if different := differences(found, {name: abstract[name] for name in abstract if self._takes(name)}):
                raise ConfigError(self._of_another_model(different))
            arrays = dict(reader.place({name: abstract[name] for name in taken}))
        return arrays | {name: _zeros(abstract[name]) for name in names if name not in arrays}

    def _takes(self, name: str) -> bool:
        return self.is_whole or name.startswith(WEIGHTS)

    def _of_another_model(self, different: Mapping[str, str]) -> str:
        advice = "set model.* as it was there"
        if not any(name.startswith(WEIGHTS) for name in different):
            advice = "set optimizer.name as it was there, or take its weights alone: init.state=weights"
        return f"init.from={self.path}: its arrays are not this model's; {advice}.{listed(different)}"


def find_origin(given: str, is_whole: bool, recorded: Mapping[str, Any] | None) -> Origin:
    """The checkpoint at `given`, or the newest of the run at `given`; the same in all processes, which all have to ask.

    Args:
        recorded: `record` of an earlier start of the new run, which goes before newer checkpoints.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = Path(given)
    if not ((path / HEADER).is_file() or is_of_format_1(path)):
        path = path / FOLDER
        steps = Checkpoints(path, keep=1).steps()
        earlier = (recorded or {}).get("step")
        chosen = of_first([earlier if earlier in steps else steps[-1]] if steps else [])
        if not chosen:
            raise ConfigError(f"init.from={given}: {_what_it_is(Path(given))}")
        path = path / str(chosen[0])
    with _advising(path):
        if is_of_format_1(path):
            from trainer.checkpoint import orbax

            return Origin(path.absolute(), is_whole, orbax.meta(path), int(path.name))
        header = Header.read(path)
        return Origin(path.absolute(), is_whole, header.meta, header.step)


def _what_it_is(folder: Path) -> str:
    if not folder.exists():
        return "no such folder; name that of a run, or one of its checkpoints"
    if (folder / FOLDER).is_dir():
        return "the run has no complete checkpoint yet"
    if foreign := refusal(folder):
        return foreign
    return "neither a run's folder nor a checkpoint; name one, such as runs/quickstart"


def _zeros(abstract: jax.ShapeDtypeStruct) -> jax.Array:
    shape = abstract.sharding.shard_shape(abstract.shape)
    part = np.zeros(shape, abstract.dtype)
    return jax.make_array_from_callback(abstract.shape, abstract.sharding, lambda _: part)


@contextmanager
def _advising(path: Path) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        raise ConfigError(f"init.from: {path} is damaged: {error}; name another checkpoint") from None
