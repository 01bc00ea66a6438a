"""A run that proves, now and then, that devices which should hold the same do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from models.inputs import Batch
from tests.trainer import small
from trainer import Config, Trainer
from trainer.errors import ConfigError, TrainingError
from trainer.keeper import OnDevices
from trainer.step import Metrics

STAGES = {"mesh": {"pipeline": 2, "data": 2, "tensor": 2}, "model": {"layers": 2}}


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, Any]:
    """Checked after every second step."""
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run") | {"check": {"replicas_every": 2}}
    return tree | {"train": {"steps": 6, "log_every": 6, "checkpoint_every": 3}}


@pytest.mark.parametrize("overrides", [{"zero.stage": 0}, STAGES], ids=["zero 0", "2 x 2 x 2"])
def test_all_is_the_same_where_nothing_is_broken(tree: dict[str, Any], overrides: dict[str, Any]) -> None:
    Trainer(Config.from_dict(tree, overrides)).train()


def flip(x: jax.Array, device: int, bit: int) -> jax.Array:
    """The last element of one device's shard has another bit."""
    shards = [np.array(shard.data) for shard in x.addressable_shards]
    shards[device].reshape(-1).view(np.uint32)[-1] ^= np.uint32(1 << bit)
    placed = [jax.device_put(shard, old.device) for shard, old in zip(shards, x.addressable_shards, strict=True)]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, placed)


def test_one_bit_on_one_device_ends_the_run(tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO 0 every device of data 4 x tensor 2 has a norm's scale."""
    step = OnDevices.step

    def step_and_break(keeper: OnDevices, batch: Batch) -> Metrics:
        metrics = step(keeper, batch)
        if int(keeper.state.step) == 3:
            weights = keeper.state.parameters
            broken = weights | {"head.norm.scale": flip(weights["head.norm.scale"], device=5, bit=0)}
            keeper.state = keeper.state._replace(parameters=broken)
        return metrics

    monkeypatch.setattr(OnDevices, "step", step_and_break)
    trainer = Trainer(Config.from_dict(tree, {"zero.stage": 0, "train.checkpoint_every": 2}))
    with pytest.raises(TrainingError) as error:
        trainer.train()
    assert "replicas of parameters.head.norm.scale differ along mesh.data after step 4" in str(error.value)
    assert "device 5 (process 0) holds something else than device 1 (process 0), device 3" in str(error.value)
    assert "they were the same after step 2" in str(error.value)
    assert trainer.checkpoints.steps() == [2], "what differs is not saved"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mesh": {"data": 1}}, "check.replicas_every=2 has nothing to compare on one device"),
        (
            {"offload": {"optimizer": "host", "parameters": "host"}, "zero.stage": 3},
            "with offload.parameters=host most weights are elsewhere",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(tree: dict[str, Any], overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config.from_dict(tree, overrides)
    assert message in str(error.value)
