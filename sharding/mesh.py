"""The device mesh: axis names, sizes, and the devices laid out on them.

Axes are named once, outermost (slowest link) first. Size-1 axes stay in the mesh, so that a layout is always
the same six words, but nothing is ever sharded over them and no collective ever names them.
Knows nothing of models, optimizers or files.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

AXES = ("pipeline", "replica", "data", "expert", "context", "tensor")
PIPELINE = "pipeline"  # stages of layers stand along it
BATCH_AXES = ("replica", "data", "expert")  # the batch is split over these
ZERO_AXES = ("data", "context")  # ZeRO shards over these
MOST_DEVICES = 1_000_000
UNSUPPORTED_AXES = ("expert", "context")  # named, but not yet brought to life


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class MeshConfig:
    """How many devices stand along each axis; -1 (at most once) takes whatever is left."""

    pipeline: int = Field(default=1, ge=-1, le=MOST_DEVICES)
    """Stages, each with a part of the layers: [pipelines.md](pipelines.md)."""
    replica: int = Field(default=1, ge=-1, le=MOST_DEVICES)
    """Groups that hold the same state and take different sequences; ZeRO does not shard over it."""
    data: int = Field(default=1, ge=-1, le=MOST_DEVICES)
    """Takes different sequences; ZeRO shards over it."""
    expert: int = Field(default=1, ge=-1, le=MOST_DEVICES)
    """Not supported yet: refused unless 1."""
    context: int = Field(default=1, ge=-1, le=MOST_DEVICES)
    """Not supported yet: refused unless 1."""
    tensor: int = Field(default=1, ge=-1, le=MOST_DEVICES)
    """Cuts every layer's matrices, and the sequence between them."""
    virtual_devices: int | None = Field(default=None, ge=1, le=10_000)
    """Train on this many virtual CPU devices, to try a layout without the machines it is for."""

    def __post_init__(self) -> None:
        for axis in AXES:
            if getattr(self, axis) == 0:
                raise ValueError(f"mesh.{axis} is 0; an axis has at least one device (1 switches it off)")
        for axis in UNSUPPORTED_AXES:
            if getattr(self, axis) != 1:
                raise ValueError(
                    f"mesh.{axis} is not supported yet; leave it out, and use data, tensor, pipeline or replica"
                )
        if sum(getattr(self, axis) == -1 for axis in AXES) > 1:
            raise ValueError("mesh: at most one axis can be -1 (whatever is left)")

    @property
    def sizes(self) -> dict[str, int]:
        """Axis name -> size as written, -1 included."""
        return {axis: getattr(self, axis) for axis in AXES}

    def resolve(self, num_devices: int) -> MeshConfig:
        """Fills -1 so that the axes multiply to `num_devices`. Raises ValueError where they cannot."""
        fixed = math.prod(size for size in self.sizes.values() if size != -1)
        free = [axis for axis, size in self.sizes.items() if size == -1]
        written = " x ".join(f"{axis} {size}" for axis, size in self.sizes.items() if size != 1) or "1 device"
        if free:
            if num_devices % fixed:
                raise ValueError(
                    f"mesh: {written} needs a multiple of {fixed} devices, and there are {num_devices}; "
                    f"use {num_devices - num_devices % fixed or fixed} devices, or change an axis"
                )
            return dataclasses.replace(self, **{free[0]: num_devices // fixed})
        if fixed != num_devices:
            raise ValueError(
                f"mesh: {written} needs {fixed} devices, and there are {num_devices}; change an axis, or set one "
                f"to -1 to take what is left (to try this layout on CPU: mesh.virtual_devices={fixed})"
            )
        return self

    @property
    def num_devices(self) -> int | None:
        """The product of the axes, or None while an axis is -1."""
        sizes = self.sizes.values()
        return None if -1 in sizes else math.prod(sizes)


def num_groups(sizes: Mapping[str, int]) -> int:
    """Groups of devices that take different sequences, on a mesh of these sizes."""
    return math.prod(sizes[axis] for axis in BATCH_AXES)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device]) -> Mesh:
    """The mesh over `devices` (real, virtual or absent), in the order given: neighbours are innermost."""
    resolved = config.resolve(len(devices))
    return Mesh(np.asarray(devices).reshape([resolved.sizes[axis] for axis in AXES]), AXES)
