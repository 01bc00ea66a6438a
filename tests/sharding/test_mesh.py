"""The mesh: what -1 takes, which device stands where, and messages that say what to do."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from sharding.mesh import AXES, UNSUPPORTED_AXES, MeshConfig, make_mesh


@pytest.mark.parametrize(
    ("config", "devices", "sizes"),
    [
        (MeshConfig(), 1, {}),
        (MeshConfig(data=-1), 8, {"data": 8}),
        (MeshConfig(data=-1), 1, {}),
        (MeshConfig(data=-1, tensor=4), 8, {"data": 2, "tensor": 4}),
        (MeshConfig(replica=-1, data=2, tensor=2), 16, {"replica": 4, "data": 2, "tensor": 2}),
        (MeshConfig(data=4, tensor=-1), 2240, {"data": 4, "tensor": 560}),
    ],
)
def test_minus_one_takes_what_is_left(config: MeshConfig, devices: int, sizes: dict[str, int]) -> None:
    resolved = config.resolve(devices)
    assert {axis: size for axis, size in resolved.sizes.items() if size != 1} == sizes
    assert resolved.num_devices == devices
    assert resolved.resolve(devices) == resolved


def test_the_number_of_devices_is_unknown_while_an_axis_is_free() -> None:
    assert MeshConfig(data=-1, tensor=4).num_devices is None


@pytest.mark.parametrize(
    ("config", "devices", "says"),
    [
        (MeshConfig(data=-1, tensor=4), 6, ["tensor 4", "multiple of 4", "there are 6", "use 4 devices"]),
        (MeshConfig(data=-1, tensor=4), 3, ["there are 3", "use 4 devices"]),
        (MeshConfig(data=4, tensor=2), 4, ["data 4 x tensor 2", "needs 8", "there are 4", "virtual_devices=8", "-1"]),
        (MeshConfig(), 8, ["1 device", "there are 8", "-1"]),
        (MeshConfig(data=2), 8, ["data 2", "needs 2", "there are 8", "-1"]),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_would(config: MeshConfig, devices: int, says: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^mesh: ") as error:
        config.resolve(devices)
    assert [text for text in says if text not in str(error.value)] == []


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"data": 0}, r"mesh\.data is 0.*1 switches it off"),
        ({"data": -1, "tensor": -1}, "at most one axis"),
        ({"data": -2}, "greater than or equal to -1"),
        ({"dta": 2}, "dta"),
        *[({axis: 2}, rf"mesh\.{axis} is not supported yet.*data, tensor") for axis in UNSUPPORTED_AXES],
        *[({axis: -1}, rf"mesh\.{axis} is not supported yet") for axis in UNSUPPORTED_AXES],
    ],
)
def test_what_cannot_be_a_mesh_is_refused(axes: dict[str, int], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        MeshConfig(**axes)


def test_neighbours_are_innermost() -> None:
    mesh = make_mesh(MeshConfig(data=-1, tensor=2), jax.devices())
    assert mesh.axis_names == AXES
    ids = np.vectorize(lambda device: device.id)(mesh.devices).reshape(4, 2)
    np.testing.assert_array_equal(ids, [[0, 1], [2, 3], [4, 5], [6, 7]])
