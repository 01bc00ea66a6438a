"""The mesh that fits the devices that are left: what `elastic` allows an axis to be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from sharding.mesh import MeshConfig
from trainer.errors import ConfigError
from trainer.processes.membership import current

if TYPE_CHECKING:
    from trainer.config import Config

Device = TypeVar("Device")


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ElasticConfig:
    """The sizes that axes of the mesh may have: each start takes the largest mesh that its devices suffice for."""

    pipeline: tuple[int, ...] = ()
    """As `elastic.data`."""
    replica: tuple[int, ...] = ()
    """As `elastic.data`."""
    data: tuple[int, ...] = ()
    """Such as `[2, 4]`; `mesh.data` is one of them. Nothing: the axis is as `mesh` has it."""
    tensor: tuple[int, ...] = ()
    """As `elastic.data`."""

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Axis name -> sizes, of the axes that may change."""
        return {field.name: sizes for field in dataclasses.fields(self) if (sizes := getattr(self, field.name))}


def meshes(config: Config) -> Iterator[MeshConfig]:
    """Every mesh that is allowed; of virtual devices there are as many as it takes."""
    elastic = config.elastic.sizes
    for sizes in itertools.product(*elastic.values()):
        mesh = dataclasses.replace(config.mesh, **dict(zip(elastic, sizes, strict=True)))
        virtual = None if mesh.virtual_devices is None else mesh.num_devices
        yield dataclasses.replace(mesh, virtual_devices=virtual)


def fit(config: Config, devices: int) -> Config:
    """The config with the largest mesh for so many devices; as it is where nothing may change.

    Among equals, the one most like the written mesh.

    Raises:
        ConfigError: there are too few.
    """
    if not config.elastic.sizes:
        return config
    allowed = list(meshes(config))
    fitting = [mesh for mesh in allowed if _size(mesh) <= devices]
    if not fitting:
        raise ConfigError(
            f"elastic: the smallest mesh takes {min(map(_size, allowed))} devices, and there are {devices}"
        )
    return dataclasses.replace(config, mesh=max(fitting, key=lambda mesh: (_size(mesh), _likeness(mesh, config.mesh))))


def _size(mesh: MeshConfig) -> int:
    return mesh.num_devices or 0


def _likeness(mesh: MeshConfig, written: MeshConfig) -> int:
    """How many axes are as written."""
    return sum(size == written.sizes[axis] for axis, size in mesh.sizes.items())


def fit_here(config: Config, devices: Sequence[Device]) -> tuple[Config, Sequence[Device]]:
    """The same for devices that are there, and those of them that it takes.

    Raises:
        ConfigError: there are too few, or some are left over and belong to one of several processes.
    """
    fitted = fit(config, len(devices))
    if not config.elastic.sizes:
        return config, devices
    taken = devices[: fitted.mesh.num_devices]
    if len(taken) < len(devices) and current() is not None:
        raise ConfigError(
            f"elastic: the largest mesh that fits takes {len(taken)} of {len(devices)} devices, and each process has "
            "to be on the mesh; start fewer processes"
        )
    return fitted, taken


def objections(config: Config) -> Iterator[str]:
    """What is wrong with the sizes themselves."""
    for axis, sizes in config.elastic.sizes.items():
        size = config.mesh.sizes[axis]
        if size not in sizes:
            yield f"mesh.{axis}={size} is not among elastic.{axis}={list(sizes)}; add it, or use one of them"
        if any(size < 1 for size in sizes):
            yield f"elastic.{axis}={list(sizes)}: an axis has at least one device"
    if config.elastic.sizes and config.mesh.num_devices is None:
        yield "elastic needs a mesh without -1 and auto: it says itself which sizes there may be"
