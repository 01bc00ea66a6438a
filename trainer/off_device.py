"""What a config keeps off the devices, in numbers: bytes of host memory and of files, by what they are.

From layouts alone, as `trainer.offload` sets them aside. What activations take is told by the traced step: it is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from sharding.layout import Layout
from sharding.mesh import num_groups
from trainer.config import Config
from trainer.offload.buckets import UNIT, Bucket, cut
from trainer.offload.buffers import PAGE, round_up
from trainer.offload.choice import in_file, offloaded, streamed
from trainer.offload.layers import layer_bytes
from trainer.offload.offloaded import AHEAD
from trainer.offload.update import RULES


@dataclass(frozen=True)
class OffDevice:
    """Bytes for one device whose process has no other: devices of one process share what they hold alike."""

    optimizer: int = 0
    """Float32 master weights and moments, in host memory."""
    weights: int = 0
    """Of streamed layers, pinned."""
    gradients: int = 0
    """Of streamed layers, float32 and pinned: their sum, and the one that it is added to if there are micro-batches."""
    activations: int = 0
    """Kept for the backward pass, pinned."""
    staging: int = 0
    """Buckets on their way: gradients down, new weights up, and the buffers of what is on NVMe, layers among it."""
    nvme: int = 0
    """In files: float32 master weights and moments; streamed layers' weights, and their gradients in float32."""

    @property
    def host(self) -> int:
        """All but the files."""
        return self.optimizer + self.in_step + self.staging

    @property
    def in_step(self) -> int:
        """What the step itself has in host memory; all else is its update's."""
        return self.weights + self.gradients + self.activations


def gradients_passing(micro_batches: float) -> int:
    """Of streamed layers, how many matrices' gradients a device holds at once: one is made while another leaves, and
    sums of micro-batches before come in likewise. By XLA's buffers for an H100."""
    return 2 if micro_batches <= 1 else 4


def off_device(config: Config, layouts: Mapping[str, Layout], activations: int) -> OffDevice:
    """Of a config no mesh axis of which is -1."""
    itemsize = jnp.dtype(config.precision.compute).itemsize
    adds = config.batch.accumulation(num_groups(config.mesh.sizes)) > 1
    optimizer, staging, nvme = _state(config, layouts)
    if names := in_file(config):
        layers = [math.prod(layouts[name].shard_shape[1:]) for name in names]
        files = layer_bytes(layers, layouts[names[0]].shard_shape[0], itemsize, adds)
        most = max(bucket.size for bucket in _buckets(config, layouts) if bucket.name in names)
        staging += files.buffers + (AHEAD + 1) * round_up(most, UNIT) * (4 + itemsize)
        nvme += files.weights + files.gradients
        return OffDevice(optimizer, activations=activations, staging=staging, nvme=nvme)
    stays = [math.prod(layouts[name].shard_shape) for name in streamed(config)]
    # A parameter that stays in host memory is gathered, and copied where devices can reach it.
    gathered = 2 * itemsize * max(stays, default=0)
    return OffDevice(
        optimizer=optimizer,
        weights=itemsize * sum(stays),
        gradients=4 * (1 + adds) * sum(stays),
        activations=activations,
        staging=staging + gathered,
        nvme=nvme,
    )


def _buckets(config: Config, layouts: Mapping[str, Layout]) -> list[Bucket]:
    shards = {name: layouts[name].shard_shape for name in offloaded(config)}
    return list(cut(shards, config.offload.bucket, in_file(config)))


def _state(config: Config, layouts: Mapping[str, Layout]) -> tuple[int, int, int]:
    """Bytes of masters and moments in host memory, of what is on its way to and from their update, and of the file."""
    buckets = [bucket.size for bucket in _buckets(config, layouts)]
    if not buckets:
        return 0, 0, 0
    of_state = 4 * (1 + len(RULES[config.optimizer.name].moments))
    itemsize = jnp.dtype(config.precision.compute).itemsize
    staging = (AHEAD + 1) * max(buckets) * (4 + itemsize)
    if config.offload.optimizer == "host":
        return of_state * sum(buckets), staging, 0
    records = [round_up(of_state * size, PAGE) for size in buckets]
    return 0, staging + config.offload.buffers * max(records), sum(records)
