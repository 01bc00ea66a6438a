"""Collectives take what was measured, and depend on where the devices of an axis stand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trainer.planner.gpu import load
from trainer.planner.links import Cluster

H100 = Cluster(load("h100"), gpus_per_node=8)


@pytest.mark.parametrize(("num_bytes", "bus"), [(10e9, 370e9), (58e6, 150e9)])
def test_an_all_reduce_in_a_node_is_as_fast_as_measured(num_bytes: float, bus: float) -> None:
    """Bus bandwidth, as nccl-tests print it: 2 (N-1) / N of the bytes a second."""
    seconds = H100.group(8, stride=1).all_reduce(num_bytes)
    assert 2 * 7 / 8 * num_bytes / seconds == pytest.approx(bus, rel=0.02)


def test_nobody_to_exchange_with() -> None:
    alone = H100.group(1, stride=8)
    assert alone.gather(1e9) == alone.all_reduce(1e9) == alone.send(1e9) == 0


def test_a_ring_has_the_network_of_all_its_members_in_a_node() -> None:
    """Of 16 GPUs: two nodes whole, or every second GPU, or one GPU of each of 16 nodes."""
    whole, half, single = (H100.group(16, stride) for stride in (1, 2, 8))
    assert single.bandwidth == pytest.approx(50e9 * load("h100").efficiency.network)
    assert half.bandwidth == pytest.approx(4 * single.bandwidth)
    assert whole.bandwidth == pytest.approx(8 * single.bandwidth)
    assert single.gather(1e9) > half.gather(1e9) > whole.gather(1e9) > H100.group(8, 1).gather(1e9)


def test_smaller_nodes_put_more_of_it_on_the_network() -> None:
    fours = Cluster(load("h100"), gpus_per_node=4)
    assert fours.group(8, stride=1).gather(1e9) > H100.group(8, stride=1).gather(1e9)


def test_a_small_sum_goes_along_a_tree() -> None:
    small = 4096
    assert 15e-6 < H100.group(8, stride=1).all_reduce(small) < 40e-6
    few, many = (H100.group(8 * nodes, stride=1).all_reduce(small) for nodes in (4, 32))
    assert few < many < 3 * few
    assert H100.group(256, stride=1).gather(small) > many / 2  # nothing but sums takes it


@pytest.mark.parametrize("gpus_per_node", [1, 3, 4, 6, 8, 100])
def test_how_many_are_in_one_node_is_counted_as_devices_are_numbered(gpus_per_node: int) -> None:
    names = ("pipeline", "data", "tensor")
    cluster = Cluster(load("h100"), gpus_per_node)
    for sizes in itertools.product((1, 2, 3, 4), repeat=3):
        mesh, numbers = dict(zip(names, sizes, strict=True)), np.arange(np.prod(sizes)).reshape(sizes)
        for axes in itertools.chain.from_iterable(itertools.combinations(names, size) for size in (1, 2, 3)):
            members = numbers[tuple(slice(None) if name in axes else 0 for name in names)]
            assert cluster.in_one_node(axes, mesh) == bool((members < gpus_per_node).all())
            assert cluster._near(axes, mesh) == (members < gpus_per_node).sum()


def test_a_mesh_takes_no_memory_however_large() -> None:
    assert not H100.in_one_node(("data",), {"pipeline": 10**6, "data": 10**6, "tensor": 10**6})
