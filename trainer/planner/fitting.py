"""What would still fit, and what would make a config fit that does not, by closed forms alone.

Answers are settings as one writes them after a command. Knows nothing of how a plan is shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from operator import itemgetter
from typing import get_args

from models.recompute import RecomputePolicy
from pallas_kernels.attention import preferred
from sharding.mesh import PIPELINE, num_groups
from trainer.attention import assumed, wanted
from trainer.config import Config
from trainer.divisors import divisors
from trainer.planner.arrangement import Arrangement
from trainer.planner.estimate import estimate
from trainer.planner.gpu import Gpu
from trainer.planner.offloading import ACTIVATIONS, STATE, written

Kinds = Sequence[list[str]]
"""Of overrides that do the same: the mildest first."""

FACTORS = {"tensor": (2, 4, 8), PIPELINE: (2, 4, 8, 16, 32, 64)}
"""By which a mesh axis may grow."""
MOST_TOGETHER = 3
ENOUGH_LESS = 0.1
"""Of the memory that a config needs, what `saves` takes away at least."""
MOST_OFFLOADED = 3
"""Ways with offload that are told: the fastest."""


def largest_micro_batch(config: Config, gpu: Gpu) -> int | None:
    """The most sequences at a time that fit, of those that divide the batch; None where not even one does."""
    sizes = _micro_batches(config)
    return next((micro for micro in sizes if _seconds(config, f"batch.micro={micro}", gpu) is not None), None)


def helps(config: Config, gpu: Gpu, gpus_per_node: int = 8) -> dict[str, float]:
    """Overrides each of which makes a config fit that does not, and seconds of a step then. No mesh axis is -1.

    Of each kind, the mildest that is enough. Where none is enough alone, those that are together; {} where none are.
    What offloads comes after what does not, and does not stand in its place.
    A mesh takes what it needs from `data`; if there is nothing to take, it is for more GPUs.
    """
    others = [
        kind
        for kind in (lean_attention(config), _smaller(config), _recomputed(config), _sharded(config), *_meshes(config))
        if kind
    ]
    offloads = [kind for kind in (_state(config), _activations(config)) if kind]
    without = _enough(config, others, [], gpu, gpus_per_node)
    with_offload = _enough(config, others, offloads, gpu, gpus_per_node)
    needed = {way: seconds for way, seconds in with_offload.items() if not any(_has(way, less) for less in without)}
    return without | dict(sorted(needed.items(), key=itemgetter(1))[:MOST_OFFLOADED])


def saves(config: Config, gpu: Gpu, missing: float, gpus_per_node: int = 8) -> dict[str, float]:
    """The same for a config that a plan may say fits, and that has run out of memory: what makes it need less by a
    tenth, and by the `missing` bytes, on as many devices. The fastest first."""
    now = min(estimate(Arrangement.of(_on_any(config)), gpu, gpus_per_node).bytes_per_gpu, gpu.limit_bytes)
    less = (1 - ENOUGH_LESS) * now
    if gpu.reserved_bytes < now - missing:
        less = min(less, now - missing)
    smaller = dataclasses.replace(gpu, memory_bytes=less, memory_fraction=1)
    found = helps(config, smaller, gpus_per_node)
    there = config.mesh.num_devices
    return {
        way: seconds
        for way, seconds in sorted(found.items(), key=itemgetter(1))
        if changed(config, way).mesh.num_devices == there
    }


def _enough(config: Config, others: Kinds, any_of: Kinds, gpu: Gpu, gpus_per_node: int) -> dict[str, float]:
    """See `helps`: as few kinds as possible together, with one of `any_of` among them, if there are any."""
    for together in range(1, MOST_TOGETHER + 1):
        found = {}
        for kinds in combinations([*any_of, *others], together):
            if any_of and not any(kind in any_of for kind in kinds):
                continue
            ways = (" ".join(overrides) for overrides in product(*kinds))
            fitting = ((way, _seconds(config, way, gpu, gpus_per_node)) for way in ways)
            if mildest := next(((way, seconds) for way, seconds in fitting if seconds is not None), None):
                found[mildest[0]] = mildest[1]
        if found:
            return found
    return {}


def _has(overrides: str, others: str) -> bool:
    return set(overrides.split()) >= set(others.split())


def _seconds(config: Config, overrides: str, gpu: Gpu, gpus_per_node: int = 8) -> float | None:
    """Of a step; None where it is no config, does not fit, or the GPU's file leaves out what is needed."""
    settings = dict(override.split("=") for override in overrides.split())
    if len(settings) < len(overrides.split()):  # two that contradict each other
        return None
    try:
        made = estimate(Arrangement.of(changed(config, overrides)), gpu, gpus_per_node)
    except ValueError:
        return None
    return made.seconds.total if made.fits else None


def changed(config: Config, overrides: str) -> Config:
    """The config with overrides, as one writes them after a command, on as many devices as its mesh has."""
    return Config.from_dict(_on_any(config).to_dict(), overrides.split())


def _on_any(config: Config) -> Config:
    """The config on as many devices as its mesh has."""
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, virtual_devices=None))


def _micro_batches(config: Config) -> Iterator[int]:
    """All that divide a device's share of the batch, the largest first."""
    share = config.batch.global_ // num_groups(config.mesh.sizes)
    return reversed(divisors(share))


def lean_attention(config: Config) -> list[str]:
    """Overrides that keep scores out of memory, where the config does not."""
    lean = assumed(config) == "reference" != preferred(wanted(config, ""))
    return ["attention.implementation=auto"] if lean else []


def _smaller(config: Config) -> list[str]:
    now = config.batch.micro_batch(num_groups(config.mesh.sizes))
    return [f"batch.micro={micro}" for micro in _micro_batches(config) if micro < now]


def _recomputed(config: Config) -> list[str]:
    policies = get_args(RecomputePolicy)
    return [f"recompute={policy}" for policy in policies[policies.index(config.recompute.policy) + 1 :]]


def _state(config: Config) -> list[str]:
    if config.offload.parameters != "none":
        return []
    if config.offload.optimizer == "none":
        return [written(settings) for settings in STATE]
    return [written({key: value for key, value in STATE[-1].items() if key != "offload.optimizer"})]


def _activations(config: Config) -> list[str]:
    return [written(ACTIVATIONS)] if config.offload.activations == "none" else []


def _sharded(config: Config) -> list[str]:
    return [f"zero.stage={stage}" for stage in range(config.zero.stage + 1, 4)] if config.mesh.data > 1 else []


def _meshes(config: Config) -> Iterator[list[str]]:
    sizes, data = config.mesh.sizes, config.mesh.data
    for axis, factors in FACTORS.items():
        yield [
            f"mesh.{axis}={factor * sizes[axis]}" + (f" mesh.data={data // factor}" if data % factor == 0 else "")
            for factor in factors
        ]
