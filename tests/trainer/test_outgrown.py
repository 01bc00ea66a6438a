"""Arrays that no mesh axis divides are had whole by every device, so one at a time: saved, loaded and evaluated."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from sharding.mesh import AXES, make_mesh
from trainer import logical
from trainer.checkpoint import Checkpoints, Later
from trainer.config import Config
from trainer.keeper import OnDevices
from trainer.program import Program
from trainer.weights import restore_weights

MODEL = {"layers": 4, "hidden": 16, "heads": 2, "ffn": 32, "vocab": 64}
GIGABYTES = 1e9


def program_of(mesh: dict[str, int], stage: int) -> Program:
    config = Config.from_dict(
        {"model": MODEL, "mesh": mesh, "zero": {"stage": stage}, "batch": {"global": 12, "sequence": 8}}
    )
    return Program(config, make_mesh(config.mesh, jax.devices()[: config.mesh.num_devices]))


def test_they_are_saved_and_loaded_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing divides by three."""
    monkeypatch.setattr(logical, "SMALL", 0)
    keeper, checkpoints = OnDevices(program_of({"data": 3}, 3)), Checkpoints(tmp_path, keep=1)
    keeper.initialise()
    alone = logical.outgrown(keeper.program)
    assert {"parameters.embedding.weight", "optimizer.nu.layers.mlp.up.weight"} <= set(alone)
    saved = keeper.logical()
    assert {name for name, array in saved.items() if isinstance(array, Later)} == set(alone)
    expected = {name: np.asarray(array.make() if isinstance(array, Later) else array) for name, array in saved.items()}
    checkpoints.save(1, saved, {})
    checkpoints.close()

    asked = []
    for mesh, stage in (({"data": 3}, 1), ({"data": 2, "tensor": 2}, 2)):
        other = OnDevices(program_of(mesh, stage))

        def read(names: list[str], other: OnDevices = other) -> dict[str, jax.Array]:
            asked.append(set(names) & set(alone))
            return checkpoints.restore(1, other.abstract(), names)

        other.restore(read)
        found = {name: array.make() if isinstance(array, Later) else array for name, array in other.logical().items()}
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
        weights = restore_weights(other.program, checkpoints, 1)
        for name, weight in other.state.parameters.items():
            np.testing.assert_array_equal(weights[name], weight, err_msg=name)
    assert [len(names) for names in asked] == [1] * len(alone) + [0] + [len(alone)]


def test_a_model_that_96_gpus_do_not_divide_fits_them_when_it_is_saved() -> None:
    config = Config.from_dict(
        {"model": {"preset": "llama3-8b"}, "mesh": {"data": 96}, "batch": {"global": 96, "sequence": 64}}
    )
    program = Program(config, AbstractMesh(tuple(config.mesh.sizes.values()), AXES))
    alone = logical.outgrown(program)
    sizes = {
        name: math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize / GIGABYTES
        for name, array in logical.abstract_logical(program).items()
    }
    assert sum(sizes.values()) > 80
    assert sum(size for name, size in sizes.items() if name not in alone) < 1
    assert max(sizes.values()) < 8
