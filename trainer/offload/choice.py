"""Which parameters have their master weights and moments offloaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from models.config import ModelConfig
from models.decoder import STACK, Decoder

if TYPE_CHECKING:
    from trainer.config import Config


def offloaded(config: Config) -> tuple[str, ...]:
    """The names of the parameters whose master weights and moments are not kept on the devices."""
    if config.offload.optimizer == "none":
        return ()
    return nearest(num_elements(config.model), config.offload.optimizer_fraction)


def streamed(config: Config) -> tuple[str, ...]:
    """Those whose weights stay off the devices: the layers'. Embedding and head do not grow with the depth."""
    if config.offload.parameters == "none":
        return ()
    return tuple(name for name in num_elements(config.model) if name.startswith(STACK))


def in_file(config: Config) -> tuple[str, ...]:
    """Those of them whose weights are not in host memory either."""
    return streamed(config) if config.offload.parameters == "nvme" else ()


def num_elements(model: ModelConfig) -> dict[str, int]:
    """Of each parameter, by name."""
    return {name: math.prod(declaration.shape) for name, declaration in Decoder(model).declarations.items()}


def nearest(sizes: Mapping[str, int], fraction: float) -> tuple[str, ...]:
    """Names whose sizes come near a fraction of all, and not above it: the largest first, each that still fits."""
    left = fraction * sum(sizes.values())
    chosen = set()
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sizes[name] <= left:
            chosen.add(name)
            left -= sizes[name]
    return tuple(name for name in sizes if name in chosen)
