"""Layers' weights in host memory: the same training, and no device that holds them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer import small
from trainer import Config, Trainer

STEPS = 3
HOST = {"offload.optimizer": "host", "offload.bucket": 500, "offload.parameters": "host"}
# Accumulated, padded, with weights that are replicated over some axis.
MESHES: dict[str, dict[str, Any]] = {
    "data3_tensor2": {"mesh": {"data": 3, "tensor": 2, "virtual_devices": 6}, "batch.global": 12, "batch.micro": 2},
    "one_device_bfloat16": small.ON_ONE_DEVICE,
}


class Run:
    """A few steps with everything on the devices, and with the layers' weights on the host."""

    def __init__(self, folder: Path, mesh: str) -> None:
        tree = small.tree(small.write_text(folder / "text"), folder / "devices")
        tree["model"] |= {"layers": 2, "hidden": 20, "ffn": 21}
        self.on_devices = Trainer(Config.from_dict(tree, MESHES[mesh] | {"zero.stage": 3}))
        self.on_host = Trainer(
            Config.from_dict(tree, MESHES[mesh] | HOST | {"zero.stage": 3, "run.dir": str(folder / "host")})
        )
        self.trainers = self.on_devices, self.on_host
        self.losses, self.losses_on_host = ([float(m.loss) for m in trainer.steps(STEPS)] for trainer in self.trainers)


@pytest.fixture(scope="module", params=MESHES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("streamed"), request.param)


def test_it_trains_as_on_the_devices(run: Run) -> None:
    np.testing.assert_allclose(run.losses_on_host, run.losses, rtol=1e-6)
    there, here = ({name: np.asarray(x) for name, x in trainer.state.items()} for trainer in run.trainers)
    assert there.keys() == here.keys()
    names = [name for name in there if name.startswith("parameters.")]
    assert norm(there[name] - here[name] for name in names) <= 1e-6 * norm(there[name] for name in names)


def norm(arrays: Iterable[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in arrays)))


def test_the_devices_hold_no_layer(run: Run) -> None:
    memory = {name: x.sharding.memory_kind for name, x in run.on_host.restored_state.parameters.items()}
    assert {name for name, kind in memory.items() if kind == "pinned_host"} == {
        name for name in memory if name.startswith("layers.")
    }


def test_its_gradients_leave_for_the_host(run: Run) -> None:
    program = run.on_host.program
    step: Any = program.step
    made = step.trace(program.abstract_state(), program.abstract_batch()).jaxpr.out_avals
    on_host = [x for x in made if x.memory_space == jax.memory.Space.Host]
    shapes = [program.layouts[name].stored_shape for name in program.streamed]
    assert sorted((x.shape, str(x.dtype)) for x in on_host) == sorted(
        (shape, str(np.dtype(dtype))) for shape in shapes for dtype in (program.zero.compute, "float32")
    )


def test_it_evaluates_generates_and_goes_on_elsewhere(run: Run) -> None:
    loss = run.on_devices.evaluate()["loss"]
    assert run.on_host.evaluate()["loss"] == pytest.approx(loss, rel=1e-3)
    assert run.on_host.generate("def", 3, temperature=0)
    run.on_host.save()
    elsewhere = Trainer.from_run(run.on_host.folder, {"offload": {"optimizer": "none"}})
    for name, array in elsewhere.state.items():
        np.testing.assert_array_equal(array, run.on_host.state[name], err_msg=name)
    expected = [float(m.loss) for m in run.on_host.steps(1)]
    assert [float(m.loss) for m in Trainer.from_run(run.on_host.folder).steps(1)] == expected
