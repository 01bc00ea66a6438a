"""The largest mesh that fits the devices that are left, among those that the config allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.config import Config
from trainer.errors import ConfigError
from trainer.processes.elastic import fit, fit_here
from trainer.processes.supervisor import local_start


def config(**sections: Any) -> Config:
    tree = {"mesh": {"data": 4, "tensor": 2}, "elastic": {"data": [1, 2, 4]}, "batch": {"global": 8}}
    return Config.from_dict(tree | sections)


@pytest.mark.parametrize(("devices", "data"), [(9, 4), (8, 4), (7, 2), (4, 2), (3, 1), (2, 1)])
def test_the_largest_that_fits(devices: int, data: int) -> None:
    fitted, taken = fit_here(config(), range(devices))
    assert (fitted.mesh.data, fitted.mesh.tensor, len(taken)) == (data, 2, 2 * data)


def test_several_axes() -> None:
    both = config(elastic={"data": [2, 4], "replica": [1, 2]})
    assert [fit(both, devices).mesh.num_devices for devices in (16, 15, 8, 4)] == [16, 8, 8, 4]


def test_among_equals_the_written_mesh_is_taken() -> None:
    both = config(mesh={"data": 4}, elastic={"data": [2, 4], "tensor": [1, 2]})
    assert [fit(both, devices).mesh.sizes["data"] for devices in (4, 8)] == [4, 4]
    other = config(mesh={"data": 2, "tensor": 2}, elastic={"data": [2, 4], "tensor": [1, 2]})
    assert (fit(other, 4).mesh.data, fit(other, 4).mesh.tensor) == (2, 2)


def test_virtual_devices_are_as_many_as_it_takes() -> None:
    assert fit(config(mesh={"data": 4, "virtual_devices": 4}), 3).mesh.virtual_devices == 2


def test_too_few() -> None:
    with pytest.raises(ConfigError, match="the smallest mesh takes 2 devices, and there are 1"):
        fit(config(), 1)


def test_without_it_the_mesh_is_as_written() -> None:
    fixed = config(elastic={})
    assert fit_here(fixed, range(5)) == (fixed, range(5))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"elastic": {"data": [2, 8]}}, r"mesh.data=4 is not among elastic.data=\[2, 8\]; add it, or use one of them"),
        ({"elastic": {"data": [0, 4]}}, "an axis has at least one device"),
        ({"elastic": {"data": [3, 4]}}, "elastic: with data 3: batch.global=8 does not divide"),
        ({"mesh": {"data": -1}, "elastic": {"data": [-1]}}, "an axis has at least one device"),
        ({"mesh": {"data": 4, "tensor": -1}}, "elastic needs a mesh without -1 and auto"),
        ({"mesh": "auto"}, "not among elastic.data"),
        ({"elastic": {"data": []}}, "elastic.data: has no effect"),
    ],
)
def test_sizes_that_cannot_be_are_refused_at_once(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**sections)


@pytest.mark.parametrize(
    ("processes", "left", "started", "mesh"),
    [(4, "4", 4, "data=4"), (4, "4,3", 2, "data=2"), (1, "4,2", 1, "data=2"), (2, "4,1", 1, "data=1")],
)
def test_fewer_devices_have_fewer_processes(
    monkeypatch: pytest.MonkeyPatch, processes: int, left: str, started: int, mesh: str
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DEVICES_LEFT", left)
    virtual = config(mesh={"data": 4, "virtual_devices": 4})
    commands = local_start(virtual, "x.yaml", ["seed=1"], processes, 1)  # type: ignore[arg-type]
    assert len(commands) == started
    assert commands[0].argv[4:-1] == ("train", "x.yaml", "seed=1", f"mesh.{mesh}")
    assert commands[0].argv[-1] == f"mesh.virtual_devices={mesh[-1]}"


@pytest.mark.parametrize(
    "overrides",
    [
        ["mesh.data=4", "elastic.data=[2,4]"],
        ["mesh={data: 4, virtual_devices: 4}", "elastic={data: [2, 4]}"],
        ["mesh.data=4", "mesh.virtual_devices=4", "elastic={data: [2, 4]}"],
        ["mesh=mesh.yaml", "mesh.virtual_devices=4", "elastic.data=[2,4]"],
    ],
)
def test_what_is_decided_stands_in_the_place_of_what_the_user_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    (tmp_path / "mesh.yaml").write_text("{data: 4, virtual_devices: 4}")
    (tmp_path / "x.yaml").write_text("mesh: {virtual_devices: 4}\nbatch: {global: 8}")
    asked = Config.load(tmp_path / "x.yaml", overrides)
    for left, data in {"4": 4, "2": 2}.items():
        monkeypatch.setenv("MESHWRIGHT_DEVICES_LEFT", left)
        (command,) = local_start(asked, tmp_path / "x.yaml", overrides, 1, 0)
        mesh = Config.load(tmp_path / "x.yaml", command.argv[command.argv.index("train") + 2 :]).mesh
        assert (mesh.data, mesh.virtual_devices) == (data, data)
