"""Layers on NVMe, as planned: bytes of files and buffers, a disk's seconds, and the step that XLA compiles."""

from __future__ import annotations

import pytest

from tests.trainer.planner.arrangements import large, tiny
from tests.trainer.planner.test_compiled import INSTALLED
from trainer.planner import plan
from trainer.planner.compiled import compile_step
from trainer.planner.gpu import load
from trainer.planner.show_compiled import compared

H100 = load("h100")
ON_HOST = ("zero.stage=3", "offload={optimizer: nvme, parameters: host, path: x}")
ON_NVME = ("zero.stage=3", "offload={optimizer: nvme, parameters: nvme, path: x}")


def test_what_the_host_had_of_layers_is_in_files() -> None:
    there, here = (plan(large("llama3-8b", "batch.global=64", *where)) for where in (ON_HOST, ON_NVME))
    assert here.off_device.in_step == 0
    of_layers = there.off_device.weights + there.off_device.gradients / 2  # two sums, of which one is in a file
    assert here.off_device.nvme - there.off_device.nvme == pytest.approx(of_layers, rel=1e-3)
    assert here.memory == there.memory


def test_host_memory_does_not_grow_with_the_layers_and_files_do() -> None:
    shallow, deep = (
        plan(tiny(f"model.layers={layers}", "model.hidden=512", "model.ffn=2048", *ON_NVME)) for layers in (4, 32)
    )
    assert shallow.off_device.host == deep.off_device.host
    assert deep.off_device.nvme == pytest.approx(8 * shallow.off_device.nvme, rel=0.2)  # embedding and head do not


def test_a_disk_at_work_for_longer_than_the_devices_is_what_a_step_waits_for() -> None:
    made, on_host = (plan(large("llama3-8b", "batch.global=64", *where)) for where in (ON_NVME, ON_HOST))
    weights = on_host.off_device.weights
    micro_batches = 4
    moved = micro_batches * 2 * weights + (2 * micro_batches - 1) * 2 * weights  # gradients: twice a weight's bytes
    work = made.seconds.matmul + made.seconds.attention + made.seconds.elementwise
    at_most = moved / H100.nvme_bandwidth
    assert at_most - work < made.seconds.host < at_most
    more = 3 * weights / H100.nvme_bandwidth  # sums are read and new weights written, beside masters and moments
    assert made.seconds.host_update - on_host.seconds.host_update == pytest.approx(more, rel=1e-3)


@pytest.mark.skipif(not INSTALLED, reason="the extra `plan` is not installed")
def test_a_gpu_that_is_not_there_holds_what_is_planned() -> None:
    config = tiny(*ON_NVME, "mesh={data: 4, tensor: 2}", "batch.global=12")
    found = compared(plan(config), compile_step(config, H100))
    assert found["host"] == {"planned": 0, "compiled": 0}
    assert 0 <= found["state"]["compiled"] - found["state"]["planned"] <= 2 * 4096  # batch and scalars
    assert found["ledger"]["equal"]
