"""What is said of each device is what its arrays measure."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console

from sharding.mesh import AXES, MeshConfig, make_mesh
from tests.trainer.planner.arrangements import tiny
from trainer import held
from trainer.planner import plan
from trainer.trainer import Trainer


def fake(mesh: Mesh) -> Any:
    """A trainer whose weights are 1 MB, cut over `data`, and whose moments are 2 MB, cut over both axes."""

    def put(size: int, *axes: str) -> jax.Array:
        return jax.device_put(jnp.zeros(size // 4), NamedSharding(mesh, PartitionSpec(axes)))

    moments = {"mu": put(1_000_000, "data", "tensor"), "nu": put(1_000_000, "data", "tensor")}
    state = SimpleNamespace(parameters={"weight": put(1_000_000, "data")}, optimizer=moments)
    program = SimpleNamespace(mesh=mesh)
    return SimpleNamespace(restored_state=state, keeper=None, program=program, folder=Path("runs/[a]"))


def printed(trainer: Any) -> list[str]:
    text = io.StringIO()
    held.held(trainer, Console(file=text, width=80))
    return text.getvalue().splitlines()


def cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def test_bytes_are_counted_on_every_device() -> None:
    mesh = make_mesh(MeshConfig(data=4, tensor=2), jax.devices())
    whole = jax.device_put(np.zeros(10, np.float32), NamedSharding(mesh, PartitionSpec()))
    cut = jax.device_put(np.zeros(8, np.int8), NamedSharding(mesh, PartitionSpec("data")))
    assert set(held.held_bytes([whole, {"a": cut}]).items()) == {(device, 42) for device in jax.devices()}


def test_a_device_is_a_row_with_its_place() -> None:
    mesh = make_mesh(MeshConfig(data=4, tensor=2), jax.devices())
    lines = printed(fake(mesh))
    assert cells(lines) == [[str(index), str(index // 2), str(index % 2), "0.25 MB", "0.25 MB"] for index in range(8)]
    assert lines[-1] == "The run's files are in runs/[a]/"


def test_places_follow_the_order_of_devices() -> None:
    devices = [jax.devices()[index] for index in (3, 0, 2, 1)]
    mesh = make_mesh(MeshConfig(data=2, tensor=2), devices)
    assert [row[:3] for row in cells(printed(fake(mesh)))] == [
        ["3", "0", "0"],
        ["0", "0", "1"],
        ["2", "1", "0"],
        ["1", "1", "1"],
    ]


def test_one_device_has_no_place() -> None:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    assert mesh.axis_names == AXES
    assert cells(printed(fake(mesh))) == [["0", "1.00 MB", "2.00 MB"]]


def test_many_devices_are_told_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "_MOST_ROWS", 7)
    mesh = make_mesh(MeshConfig(data=4, tensor=2), jax.devices())
    trainer = fake(mesh)
    assert cells(printed(trainer)) == [["8", "0.25 MB", "0.25 MB"]]
    trainer.restored_state.parameters["more"] = jax.device_put(jnp.zeros(250_000), jax.devices()[0])
    assert cells(printed(trainer)) == [["1", "1.25 MB", "0.25 MB"], ["7", "0.25 MB", "0.25 MB"]]


@pytest.mark.parametrize("tier", ["host", "nvme"])
def test_what_is_offloaded_is_told_by_where_it_is_and_is_what_was_planned(tier: str, tmp_path: Path) -> None:
    where = f"path: {tmp_path}, " if tier == "nvme" else ""
    offload = f"offload={{optimizer: {tier}, parameters: host, {where}bucket: 5000}}"
    config = tiny("mesh={data: 8}", "zero.stage=3", offload, f"run.dir={tmp_path}", "run.compile_cache=null")
    trainer, planned = Trainer(config), plan(config)
    away = planned.off_device
    lines = printed(trainer)
    assert [row[2:] for row in cells(lines)] == 8 * [[megabytes(planned.memory.weights), "0.00 MB"]]
    state = "of master weights and moments (float32)"
    said = {
        "host": [f"in host memory, for all devices here: {megabytes(8 * away.optimizer)} {state}"],
        "nvme": [
            f"on NVMe, for all devices here: {megabytes(8 * away.nvme)} {state}",
            f"in host memory: {megabytes(4 * 14 * 4096)} of buffers for these",  # 4 of 64 x 72 x 12 bytes, in pages
        ],
    }[tier]
    weights = f"in host memory that devices read: {megabytes(8 * away.weights)} of layers' weights"
    assert [line for line in lines if line.startswith(("in host memory", "on NVMe"))] == [*said, weights]


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.2f} MB"
