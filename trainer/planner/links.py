"""Where the devices of a mesh axis stand, and how long they take to exchange, over NVLink or the network.

Devices are laid out with `tensor` innermost and `pipeline` outermost, node after node. Times are seconds if nothing
else happens; what hides them is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.planner.gpu import Gpu
from trainer.wire import Kind

FLAGGED = 4
"""Small messages go with a flag beside each word, so that nobody waits for a barrier: at a quarter of the bandwidth, at
worst (NCCL's LL protocol)."""
NVLINK_HOP = 2e-6
"""Seconds from one GPU to the next for a message of no size: small all-reduces of 8 GPUs take about 20 µs."""


@dataclass(frozen=True)
class Group:
    """Devices that exchange with each other: in a ring, or small sums along a tree."""

    size: int
    bandwidth: float
    """Bytes/s of each device each way."""
    latency: float
    """Seconds of one way around the ring, at full bandwidth."""
    tree: float
    """Seconds of one way along the tree, for a message of no size."""

    def gather(self, num_bytes: float) -> float:
        """Seconds of an all-gather to, or a reduce-scatter of, arrays of `num_bytes` each."""
        if self.size == 1:
            return 0.0
        return (self.size - 1) / self.size * num_bytes / self.bandwidth + self.latency

    def all_reduce(self, num_bytes: float) -> float:
        """Seconds: a reduce-scatter and an all-gather around the ring; or up and down the tree, if that is sooner."""
        along_the_tree = FLAGGED * num_bytes / self.bandwidth + self.tree if self.size > 1 else 0.0
        return 2 * min(self.gather(num_bytes), along_the_tree)

    def send(self, num_bytes: float) -> float:
        """Seconds of sending to a neighbour, all at once."""
        return 0.0 if self.size == 1 else num_bytes / self.bandwidth + self.latency / (self.size - 1)

    def seconds(self, kind: Kind, num_bytes: float) -> float:
        """Seconds of a collective whose payload, as `trainer.wire.Transfer` counts it, is so many bytes."""
        if kind == "permute":
            return self.send(num_bytes)
        return self.all_reduce(num_bytes) if kind == "all_reduce" else self.gather(num_bytes)


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs."""

    gpu: Gpu
    gpus_per_node: int

    def along(self, axes: Sequence[str], mesh: Mapping[str, int]) -> Group:
        """The devices that exchange over some axes of a mesh, whose sizes are given outermost first."""
        near = self._near(axes, mesh)
        return self.group(math.prod(mesh[axis] for axis in axes), max(1, self.gpus_per_node // near))

    def in_one_node(self, axes: Sequence[str], mesh: Mapping[str, int]) -> bool:
        """Whether all of them are joined by NVLink."""
        return self._near(axes, mesh) == math.prod(mesh[axis] for axis in axes)

    def _near(self, axes: Sequence[str], mesh: Mapping[str, int]) -> int:
        """How many of them are in the node of the first."""
        strides = {axis: math.prod([*mesh.values()][place:]) for place, axis in enumerate(mesh, start=1)}
        return _below([(mesh[axis], strides[axis]) for axis in mesh if axis in axes], self.gpus_per_node)

    def group(self, size: int, stride: int) -> Group:
        """`size` devices, each `stride` after the one before, as all such groups of the cluster exchange at once."""
        near = min(size, max(1, self.gpus_per_node // stride))  # in one node
        link = self.gpu.link
        if near == size:
            return Group(size, link.bandwidth, (size - 1) * link.latency, (size - 1) * NVLINK_HOP)
        # A ring enters and leaves a node once, and has the network's share of all its members there.
        share = self.gpu.network_bandwidth * self.gpu.efficiency.network * near
        nodes = -(-size // near)
        latency = (nodes - 1) * self.gpu.network_latency + nodes * (near - 1) * link.latency
        tree = math.ceil(math.log2(nodes)) * self.gpu.network_latency + (near - 1) * NVLINK_HOP
        return Group(size, min(link.bandwidth, share), latency, tree)


def _below(axes: Sequence[tuple[int, int]], limit: int) -> int:
    """Of all the places along some axes, given as (size, devices from one place to the next), the outermost first, how
    many are below the device `limit`."""
    if not axes or limit <= 0:
        return int(limit > 0)
    (size, stride), *inner = axes
    whole = min(limit // stride, size)  # all that is further in is below
    partly = _below(inner, limit - whole * stride) if whole < size else 0
    return whole * math.prod(size for size, _ in inner) + partly
