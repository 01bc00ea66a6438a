"""A run is measured by its weights alone: no moment is read, and no place of what is offloaded is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.held import held_bytes

STREAMED = {"optimizer": "nvme", "parameters": "host", "path": "/nowhere"}
ELSEWHERE: dict[str, dict[str, Any]] = {
    "as_trained": {},
    "padded": {"mesh": {"data": 3, "virtual_devices": 3}, "batch.global": 6, "zero.stage": 3},
    "stages": {"mesh": {"data": 2, "pipeline": 2, "virtual_devices": 4}},
    "nvme_of_another_machine": {"offload": {"optimizer": "nvme", "path": "/nowhere"}},
    "streamed": {"mesh": {"data": 3, "virtual_devices": 3}, "batch.global": 6, "zero.stage": 3, "offload": STREAMED},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    folder = tmp_path_factory.mktemp("weights")
    tree = small.tree(small.write_text(folder / "text"), folder / "run")
    tree["model"] |= {"layers": 2, "hidden": 20, "ffn": 21}
    tree |= {"mesh": {"data": 2, "tensor": 2, "virtual_devices": 4}, "precision": {"compute": "bfloat16"}}
    trainer = Trainer(Config.from_dict(tree))
    list(trainer.steps(1))
    trainer.save()
    return trainer


@pytest.mark.parametrize("layout", ELSEWHERE)
def test_they_are_the_masters_in_the_dtype_that_is_computed_with(trained: Trainer, layout: str) -> None:
    again = Trainer.from_run(trained.folder, ELSEWHERE[layout])
    weights, program = again.parameters, again.program
    like = program.abstract_state().parameters
    assert weights.keys() == like.keys()
    for name, weight in weights.items():
        assert (weight.shape, weight.dtype) == (like[name].shape, jnp.bfloat16)
        assert weight.sharding.memory_kind == like[name].sharding.memory_kind
        master = trained.state[f"parameters.{name}"].astype(jnp.bfloat16)
        logical = program.layouts[name].logical(jnp.asarray(np.asarray(weight)))
        np.testing.assert_array_equal(logical, master, err_msg=name)


@pytest.mark.parametrize("parameters", ["host", "nvme"])
def test_they_measure_as_the_state_does_and_write(trained: Trainer, parameters: str) -> None:
    """Layers that training keeps in a file are in host memory meanwhile."""
    again = Trainer.from_run(
        trained.folder, {**ELSEWHERE["streamed"], "offload": STREAMED | {"parameters": parameters}}
    )
    assert again.evaluate()["loss"] == pytest.approx(trained.evaluate()["loss"], rel=1e-3)
    assert again.generate("def", 3).startswith("def")
    assert again.tokens == trained.tokens


def test_a_run_that_goes_on_meanwhile_is_measured_where_it_is(trained: Trainer, tmp_path: Path) -> None:
    """And the weights make room when the state is needed."""
    run = Trainer(Config.from_dict(trained.config.to_dict(), {"run.dir": str(tmp_path / "run")}))
    run.save()
    watching = Trainer.from_run(run.folder)
    first = watching.parameters
    assert watching.parameters is first
    list(run.steps(1))
    run.save()
    second = watching.parameters
    assert watching.step == 1
    assert any((np.asarray(first[name]) != np.asarray(second[name])).any() for name in first)
    held = held_bytes(second)[jax.devices()[0]]
    list(watching.steps(1))
    assert watching.parameters is watching.restored_state.parameters
    assert held_bytes(watching.parameters)[jax.devices()[0]] == 2 * held
