"""What would still fit, and what would make a config fit that does not: by the closed forms of memory alone.

Answers are settings as one writes them after a command. Knows nothing of seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import combinations, product
from typing import get_args

from models.recompute import RecomputePolicy
from sharding.mesh import PIPELINE, num_groups
from trainer.config import Config
from trainer.planner.arrangement import Arrangement
from trainer.planner.gpu import Gpu
from trainer.planner.memory import stage_memory

FACTORS = {"tensor": (2, 4, 8), PIPELINE: (2, 4, 8, 16, 32, 64)}
"""By which a mesh axis may grow."""
MOST_TOGETHER = 3


def largest_micro_batch(config: Config, gpu: Gpu) -> int | None:
    """The most sequences at a time that fit, of those that divide the batch; None where not even one does."""
    return next((micro for micro in _micro_batches(config) if _fits(config, [f"batch.micro={micro}"], gpu)), None)


def helps(config: Config, gpu: Gpu) -> list[str]:
    """Overrides each of which makes a config fit that does not, no mesh axis of which is -1.

    Of each kind, the mildest that is enough. Where none is enough alone, those that are together; [] where none are.
    A mesh takes what it needs from `data`; if there is nothing to take, it is for more GPUs.
    """
    ways = (_smaller(config), _recomputed(config), _offloaded(config), _sharded(config), *_meshes(config))
    kinds = [kind for kind in ways if kind]
    for together in range(1, MOST_TOGETHER + 1):
        found = [_mildest(config, chosen, gpu) for chosen in combinations(kinds, together)]
        if enough := [overrides for overrides in found if overrides]:
            return [" ".join(overrides) for overrides in enough]
    return []


def _mildest(config: Config, kinds: tuple[list[str], ...], gpu: Gpu) -> tuple[str, ...] | None:
    """One override of each kind, so that the config fits. Of a kind, milder ones come first."""
    return next((overrides for overrides in product(*kinds) if _fits(config, " ".join(overrides).split(), gpu)), None)


def _fits(config: Config, overrides: list[str], gpu: Gpu) -> bool:
    """Whether it is a config, and fits."""
    try:
        changed = Arrangement.of(Config.from_dict(_on_any(config).to_dict(), overrides))
    except ValueError:
        return False
    return max(stage.total for stage in stage_memory(changed, gpu)) <= gpu.memory_bytes


def _on_any(config: Config) -> Config:
    """The config on as many devices as its mesh has."""
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, virtual_devices=None))


def _micro_batches(config: Config) -> Iterator[int]:
    """All that divide a device's share of the batch, the largest first."""
    share = config.batch.global_ // num_groups(config.mesh.sizes)
    return (micro for micro in range(share, 0, -1) if share % micro == 0)


def _smaller(config: Config) -> list[str]:
    now = config.batch.micro_batch(num_groups(config.mesh.sizes))
    return [f"batch.micro={micro}" for micro in _micro_batches(config) if micro < now]


def _recomputed(config: Config) -> list[str]:
    policies = get_args(RecomputePolicy)
    return [f"recompute={policy}" for policy in policies[policies.index(config.recompute.policy) + 1 :]]


def _offloaded(config: Config) -> list[str]:
    can = config.offload.activations == "none" and config.mesh.pipeline == 1
    return ["offload.activations=host"] if can else []


def _sharded(config: Config) -> list[str]:
    return [f"zero.stage={stage}" for stage in range(config.zero.stage + 1, 4)] if config.mesh.data > 1 else []


def _meshes(config: Config) -> Iterator[list[str]]:
    sizes, data = config.mesh.sizes, config.mesh.data
    for axis, factors in FACTORS.items():
        yield [
            f"mesh.{axis}={factor * sizes[axis]}" + (f" mesh.data={data // factor}" if data % factor == 0 else "")
            for factor in factors
        ]
