"""The whole config: one frozen dataclass, from YAML, with overrides.

Whatever is wrong with what the user wrote is a ConfigError that names the place, the reason and a way out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from models.config import ModelConfig
from pallas_kernels.config import AttentionConfig
from sharding.mesh import MeshConfig
from sharding.pipeline.config import PipelineConfig
from sharding.zero import ZeroConfig
from trainer import config_checks, config_presets, config_yaml, run_mark
from trainer.config_auto import AUTO, AutoMesh, auto_mesh
from trainer.config_errors import build
from trainer.config_source import Overrides, Source, read_file
from trainer.data.config import DataConfig
from trainer.errors import ConfigError
from trainer.failures.config import CheckConfig, FailuresConfig, WatchdogConfig
from trainer.offload.config import OffloadConfig
from trainer.path_types import RESOLVED
from trainer.paths import absolute, local
from trainer.pipeline import is_table
from trainer.processes.elastic import ElasticConfig
from trainer.secrets import refusals
from trainer.settings import (
    BatchConfig,
    InitConfig,
    OptimizerConfig,
    PrecisionConfig,
    RecomputeConfig,
    RunConfig,
    TrainConfig,
)

TRAINED = ("elastic={}", "check={}")
"""Overrides for a run that is not trained here: its mesh is known, and nothing is to be checked."""
ANYWHERE = ("mesh={pipeline: 1}", *TRAINED)
"""Overrides with which the config of a run loads, whatever has become of its devices and of its schedule's table."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """All that a run depends on, one section per owner. Every field has a default, so the empty file trains."""

    model: ModelConfig = ModelConfig()
    mesh: MeshConfig = MeshConfig()
    pipeline: PipelineConfig = PipelineConfig()
    zero: ZeroConfig = ZeroConfig()
    batch: BatchConfig = BatchConfig()
    precision: PrecisionConfig = PrecisionConfig()
    recompute: RecomputeConfig = RecomputeConfig()
    offload: OffloadConfig = OffloadConfig()
    attention: AttentionConfig = AttentionConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    data: DataConfig = DataConfig()
    init: InitConfig = InitConfig()
    train: TrainConfig = TrainConfig()
    failures: FailuresConfig = FailuresConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    check: CheckConfig = CheckConfig()
    run: RunConfig = RunConfig()
    elastic: ElasticConfig = ElasticConfig()
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of initial weights, of the order of samples and of dropout."""

    @classmethod
    def load(cls, path: str | Path, overrides: Overrides = ()) -> Config:
        """Reads a YAML file, then `overrides`: texts such as `mesh.tensor=4`, or a mapping of dotted keys.

        Values of texts are YAML. An override of a whole section (`optimizer={name: sgd}`) replaces it.
        `mesh` may be a file of its own, found from the config's folder or from the current one; or `auto`, which
        becomes an `AutoMesh`.

        The config in a run's folder is of the run that stands there, wherever it was begun; with an override of
        run.name or run.dir, of another.

        Raises:
            ConfigError: lists what is wrong, each with its file and line, or its override.
        """
        path = local(Path(path))
        source = Source(str(path), path.parent)
        source.read(read_file(path))
        is_own = path.name == run_mark.CONFIG and run_mark.is_run(path.parent)
        name = _run_name(source)
        source.override(overrides)
        if is_own and ("run", "dir") not in source.overridden:
            _put_where_it_stands(source, path.parent if _run_name(source) == name else None)
        return cls.of(source)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], overrides: Overrides = ()) -> Config:
        """The same from nested mappings, such as `to_dict` gives."""
        source = Source()
        source.read(config_yaml.plain(tree, ""))
        source.override(overrides)
        return cls.of(source)

    @classmethod
    def of(cls, source: Source) -> Config:
        """The same from what is gathered already, under which it fills in a preset's fields."""
        if secret := [source.about(key, message) for key, message in refusals(source.tree)]:
            raise ConfigError("\n".join(secret))
        config_presets.fill_in(source)
        is_auto = source.tree.get("mesh") == AUTO
        if is_auto:
            del source.tree["mesh"]
        config = build(cls, source)
        if is_auto:
            config = dataclasses.replace(config, mesh=auto_mesh(config, source))
        problems = [source.about(key, message) for key, message in config_checks.without_effect(config, source)]
        problems += [source.about_named(message) for message in config_checks.contradictions(config)]
        if problems:
            raise ConfigError("\n".join(problems))
        return config

    def resolve(self, num_devices: int) -> Config:
        """The config for a number of devices: no mesh axis is -1, and everything is known to fit.

        Raises:
            ConfigError: the mesh does not fit the devices, or the batch or the model the mesh; or it is an `AutoMesh`.
        """
        try:
            resolved = dataclasses.replace(self, mesh=self.mesh.resolve(num_devices))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        problems = list(config_checks.contradictions(resolved))
        if problems:
            raise ConfigError("\n".join(problems))
        return resolved

    def to_dict(self, resolved: bool = False) -> dict[str, Any]:
        """Plain data with every key that has an effect; `from_dict` makes an equal config of it.

        Args:
            resolved: every path is absolute, so that it is the same in another working folder.
        """
        context = RESOLVED if resolved else None
        tree = TypeAdapter(Config).dump_python(self, mode="json", by_alias=True, context=context)
        if resolved and is_table(self.pipeline.schedule):
            tree["pipeline"]["schedule"] = absolute(local(self.pipeline.schedule))
        dropped = [key for key, _ in config_checks.without_effect(self)]
        if isinstance(self.mesh, AutoMesh):
            tree["mesh"] = AUTO
            dropped += self.mesh.open
        for key in dropped:
            section = tree
            for name in key[:-1]:
                section = section.get(name, {})
            section.pop(key[-1], None)
        return {name: section for name, section in tree.items() if section != {}}

    def to_yaml(self) -> str:
        """`to_dict` as YAML; `load` makes an equal config of it."""
        return config_yaml.dump(self.to_dict())


def _run_name(source: Source) -> object:
    run = source.tree.get("run")
    return run.get("name") if isinstance(run, dict) else None


def _put_where_it_stands(source: Source, folder: Path | None) -> None:
    """run.dir of a run's own config, which may have been written at another place; None for a run of another name."""
    if folder is None:
        source.remove(("run", "dir"))
    else:
        folder = folder.absolute() if folder == Path() else folder  # "." says little in a message
        source.put(("run", "dir"), config_yaml.plain(str(folder), source.name))
