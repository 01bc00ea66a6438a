"""How long the host takes to update what is offloaded: gradients come down, are used, and new weights go up.

Bucket by bucket, all of them at the same time: the slowest counts. What devices compute hides none of it, as the update
waits for the norm of all gradients, and the next step for all weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainer.planner.arrangement import Arrangement
from trainer.planner.gpu import Gpu
from trainer.planner.sizes import Stage


@dataclass(frozen=True)
class Lane:
    """What one of them moves for one GPU, and how fast, were it alone. A node's GPUs share its memory and its disks."""

    bytes: float
    bandwidth: float
    """Bytes/s."""

    @property
    def seconds(self) -> float:
        return self.bytes / self.bandwidth


@dataclass(frozen=True)
class HostUpdate:
    """The lanes, which work side by side; None for those that have nothing to do."""

    down: Lane | None = None
    """Gradients over the link to the host, float32."""
    update: Lane | None = None
    """Host memory, read and written."""
    up: Lane | None = None
    """New weights over the link, in the dtype that is computed with."""
    nvme: Lane | None = None
    """Masters and moments, read and written on disk; of layers there, gradients read and new weights written."""

    @property
    def lanes(self) -> dict[str, Lane]:
        """Those that have something to do."""
        return {field.name: lane for field in fields(self) if (lane := getattr(self, field.name)) is not None}

    @property
    def seconds(self) -> float:
        """Of the slowest."""
        return max((lane.seconds for lane in self.lanes.values()), default=0.0)


def host_update(a: Arrangement, stage: Stage, gpu: Gpu) -> HostUpdate:
    """Of a device of a stage. What is streamed has its gradients and its weights on the host already.

    Raises:
        ConfigError: the GPU's file leaves out how fast its host is.
    """
    if not a.offloaded:
        return HostUpdate()
    away = a.offloaded * stage.elements / a.shares
    streamed = stage.streamed(a) / a.shares
    linked = away - streamed
    state = 2 * 4 * (1 + a.moments)  # read and written
    moved = away * (state + 4 + a.itemsize)
    on_disk = away * state
    if a.layers_on_nvme:
        on_disk += streamed * (4 + a.itemsize)
    else:
        moved += streamed * 2 * a.itemsize  # which are copied once more
    return HostUpdate(
        down=Lane(4 * linked, gpu.of_host("host_bandwidth")),
        update=Lane(moved, gpu.of_host("host_memory_bandwidth")),
        up=Lane(a.itemsize * linked, gpu.of_host("host_bandwidth")),
        nvme=Lane(on_disk, gpu.of_host("nvme_bandwidth")) if a.on_nvme else None,
    )


def layers_lane(a: Arrangement, stage: Stage, gpu: Gpu) -> Lane | None:
    """What a device's layers have a disk move for one micro-batch: weights are read twice, and the sum of gradients is
    written and, but for the first, read. None where they are not on one.

    Raises:
        ConfigError: the GPU's file leaves out how fast its host's disks are.
    """
    if not a.layers_on_nvme:
        return None
    not_first = 1 - 1 / a.micro_batches
    moved = stage.streamed(a) / a.shares * (2 * a.itemsize + 4 * (1 + not_first))
    return Lane(moved, gpu.of_host("nvme_bandwidth"))
