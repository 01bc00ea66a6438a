"""Activations on the host: the same numbers to the bit, other memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from models.inputs import Batch
from sharding.mesh import make_mesh
from tests.trainer.layouts import LLAMA, Row, batches
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.program import Program

ROWS = [
    Row(LLAMA, zero=0, recompute="selective"),
    Row(LLAMA, zero=1, data=2, recompute="full"),
    Row(LLAMA, zero=2, data=2, recompute="none"),
    Row(LLAMA, zero=3, data=2, tensor=2, accumulation=2, recompute="selective"),
]
DEFAULT = ROWS[::3]
"""One device, and as many kinds of exchange as there are."""


def trained(config: Config, devices: int, text: str) -> tuple[dict[str, np.ndarray], float]:
    """Weights after a step of SGD, which are its gradients times a number, and its loss."""
    program = Program(config, make_mesh(config.mesh, jax.devices()[:devices]))
    shardings = jax.tree.map(lambda spec: jax.NamedSharding(program.mesh, spec), program.batch_specs)
    state, metrics = program.step(program.init(), jax.device_put(Batch(**batches(text)[0]), shardings))
    return jax.device_get(state.parameters), float(metrics.loss)


def offloaded(config: Config) -> Config:
    return Config.from_dict(config.to_dict(), ["offload.activations=host"])


@pytest.mark.parametrize(
    "row", [pytest.param(r, marks=() if r in DEFAULT else pytest.mark.sweep) for r in ROWS], ids=str
)
def test_losses_and_gradients_are_those_without_to_the_bit(row: Row) -> None:
    kept, on_host = (trained(config, row.num_devices, row.task.text) for config in (row.config, offloaded(row.config)))
    assert kept[1] == on_host[1]
    for name, weights in kept[0].items():
        np.testing.assert_array_equal(weights, on_host[0][name], err_msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipeline": 2}, "does not work with mesh.pipeline=2: .* use mesh.pipeline=1"),
        ({"scan": False}, "relieves no device with model.scan_layers=false: .* use model.scan_layers=true"),
    ],
)
def test_what_would_not_relieve_a_device_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"offload.activations=host {message}"):
        offloaded(dataclasses.replace(ROWS[0], **changes).config)
