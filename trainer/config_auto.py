"""`mesh: auto`: a mesh that is open until the devices are known, and which settings are found together with it.

What a user writes besides is fixed, and what is left open is found, by `trainer.planner.auto`: how is not known here.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from typing import TYPE_CHECKING

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from sharding.mesh import MeshConfig
from trainer.config_yaml import KeyPath

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.config_source import Source

AUTO = "auto"
"""What stands for the section."""

SEARCHED = (
    "mesh.pipeline",
    "mesh.replica",
    "mesh.data",
    "mesh.tensor",
    "zero.stage",
    "pipeline.schedule",
    "pipeline.virtual_stages",
    "pipeline.layers",
    "pipeline.head",
    "pipeline.keep",
    "batch.micro",
    "recompute.policy",
)
"""Settings that a search chooses, unless they are fixed."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class AutoMesh(MeshConfig):
    """Every axis is open, and so is all of `SEARCHED` that is not in `fixed`."""

    pipeline: int = -1
    replica: int = -1
    data: int = -1
    tensor: int = -1
    fixed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if unknown := self.fixed - {*SEARCHED}:
            raise ValueError(f"fixed: no search chooses {', '.join(sorted(unknown))}")

    @property
    def open(self) -> list[KeyPath]:
        """The keys outside `mesh` that are found."""
        paths = [tuple(key.split(".")) for key in SEARCHED if key not in self.fixed]
        return [path for path in paths if path[0] != "mesh"]

    def resolve(self, num_devices: int) -> MeshConfig:
        """Never: a number of devices is not enough to choose."""
        raise ValueError(
            "mesh: auto is found for the GPUs that train; to see what it takes on others: meshwright plan CONFIG --gpu "
            "h100 --gpus 8; to write it: meshwright search CONFIG --gpu h100 --gpus 8 --out FILE; or give a mesh, such "
            "as mesh={data: 8}"
        )


def auto_mesh(config: Config, source: Source) -> AutoMesh:
    """The mesh of a config that leaves it to the search: what is written besides is fixed."""
    return AutoMesh(fixed=fixed_by(config, [path for path in source.places if len(path) > 1]))


def fixed_by(config: Config, keys: Collection[KeyPath]) -> frozenset[str]:
    """Those of `SEARCHED` that setting `keys` decides. What is left open (-1, null) decides nothing."""
    return frozenset(
        key
        for key in SEARCHED
        if any(tuple(key.split(".")[:size]) in keys for size in (1, 2)) and attrgetter(key)(config) not in (-1, None)
    )
