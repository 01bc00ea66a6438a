"""The whole config: one frozen dataclass, from YAML, with overrides."""

from __future__ import annotations

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from models.config import ModelConfig
from sharding.mesh import MeshConfig
from sharding.zero import ZeroConfig
from trainer.data.config import DataConfig
from trainer.settings import (
    BatchConfig,
    OptimizerConfig,
    PrecisionConfig,
    RecomputeConfig,
    RunConfig,
    TrainConfig,
)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    model: ModelConfig = ModelConfig()
    mesh: MeshConfig = MeshConfig()
    zero: ZeroConfig = ZeroConfig()
    batch: BatchConfig = BatchConfig()
    precision: PrecisionConfig = PrecisionConfig()
    recompute: RecomputeConfig = RecomputeConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    run: RunConfig = RunConfig()
    seed: int = Field(0, ge=0)
