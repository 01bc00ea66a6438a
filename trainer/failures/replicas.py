"""Now and then, and before it is saved: is what devices hold several times still the same?

One small program that sends a few bytes. Its result is read when the host looks at the steps' numbers anyway, so nobody
waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from sharding.mesh import AXES
from sharding.replicas import axes_of_replicas, compare
from trainer.errors import TrainingError
from trainer.logical import names
from trainer.program import Program
from trainer.step import TrainState

MOST_SHOWN = 4  # devices


class ReplicaCheck:
    """Of all that the devices hold of the training state, every `every` steps; never where that is None."""

    def __init__(self, program: Program, every: int | None) -> None:
        self._program, self._every = program, every
        self._due: list[tuple[int, jax.Array, jax.Array]] = []
        self.same_at: int | None = None
        """The last step after which all was the same."""

    @cached_property
    def _names(self) -> list[str]:
        return names(self._program)

    @cached_property
    def _compare(self) -> Callable[[TrainState], tuple[jax.Array, jax.Array]]:
        """See `sharding.replicas.compare`."""
        program = self._program
        specs = jax.tree.leaves(program.state_specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
        axes = [axes_of_replicas(spec, program.mesh.shape) for spec in specs]
        by_device = PartitionSpec(tuple(axis for axis in AXES if program.mesh.shape[axis] > 1))
        local = program.manual(
            lambda state: compare(jax.tree.leaves(state), axes), (program.state_specs,), (PartitionSpec(), by_device)
        )
        return jax.jit(local)

    def after(self, step: int, state: TrainState, saves: bool) -> None:
        """Of each finished step; sends the comparison off where it is due, or the state about to be saved."""
        if self._every is not None and (step % self._every == 0 or saves):
            self._due.append((step, *self._compare(state)))

    def look(self) -> None:
        """Waits for the comparisons that were sent off.

        Raises:
            TrainingError: something differs. All processes raise it.
        """
        due, self._due = self._due, []
        for step, differ, prints in due:
            found = np.asarray(differ)
            if found.any():
                raise TrainingError(self._describe(step, found, prints))
            self.same_at = step

    def _describe(self, step: int, differ: np.ndarray, prints: jax.Array) -> str:
        """`differ` is bool [AXES, arrays], `prints` uint32 [devices, arrays]."""
        devices = self._program.mesh.devices
        everywhere = multihost_utils.process_allgather(prints, tiled=True)
        values = np.asarray(everywhere).reshape(*devices.shape, len(self._names))
        axis, array = (int(place[0]) for place in np.nonzero(differ))
        odd = "; ".join(_odd(np.moveaxis(devices, axis, -1), np.moveaxis(values[..., array], axis, -1)))
        others = int(differ.any(0).sum()) - 1
        more = f", and so do those of {others} other arrays" if others else ""
        same = "" if self.same_at is None else f"; they were the same after step {self.same_at}"
        return (
            f"replicas of {self._names[array]} differ along mesh.{AXES[axis]} after step {step}{more}: {odd}{same}. "
            "Look after the memory and the links of these devices; what was saved was the same everywhere, so that the "
            "same command can go on from there, best without them"
        )


def _odd(devices: np.ndarray, values: np.ndarray) -> Iterator[str]:
    """Of each group that lies along the last dim and is not of one value, who holds something else than most."""
    for group, held in zip(devices.reshape(-1, devices.shape[-1]), values.reshape(-1, values.shape[-1]), strict=True):
        (usual, count), *others = Counter(held.tolist()).most_common()
        if not others:
            continue
        odd = [device for device, value in zip(group, held, strict=True) if value != usual]
        rest = [device for device, value in zip(group, held, strict=True) if value == usual]
        if count > others[0][1]:
            yield f"{_call(odd)} holds something else than {_call(rest)}"
        else:
            yield f"{_call(odd)} and {_call(rest)} hold different values"


def _call(devices: list[jax.Device]) -> str:
    named = [f"device {device.id} (process {device.process_index})" for device in devices]
    return ", ".join(named[:MOST_SHOWN]) + (f" and {len(named) - MOST_SHOWN} more" if len(named) > MOST_SHOWN else "")
