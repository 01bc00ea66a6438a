"""Devices together hold the model: every parameter once, and copies only where a trainer makes them."""

from __future__ import annotations

import dataclasses

import pytest

from models.presets import PRESETS, num_parameters
from tests.trainer.planner.arrangements import large, tiny
from trainer.config import Config
from trainer.planner.arrangement import Arrangement
from trainer.planner.practice import MEGATRON_CORE
from trainer.planner.sizes import stages


@pytest.mark.parametrize("preset", PRESETS)
def test_one_device_holds_every_parameter(preset: str) -> None:
    config = Config.from_dict({"model": {"preset": preset}})
    (stage,) = stages(Arrangement.of(dataclasses.replace(config, mesh=config.mesh.resolve(1))))
    assert stage.elements == num_parameters(config.model)


@pytest.mark.parametrize("preset", ["gpt3-175b", "llama3-70b"])
def test_stages_and_tensor_ranks_share_it(preset: str) -> None:
    config = large(preset)
    held = stages(Arrangement.of(config))
    together = sum(stage.elements for stage in held) * config.mesh.tensor
    assert 1 < together / num_parameters(config.model) < 1.01  # norms, biases and positions are on each


def test_the_first_of_asynchronous_stages_embeds_and_the_last_has_the_head() -> None:
    config = tiny("mesh={pipeline: 4}", "model.layers=6", "pipeline.layers=[1, 2, 2, 1]", "model.tied=true")
    ours = stages(Arrangement.of(config))
    theirs = stages(Arrangement.of(config, MEGATRON_CORE))
    assert [stage.layers for stage in theirs] == [1, 2, 2, 1]
    assert [stage.layers for stage in ours] == [2, 2, 2, 2]  # in one program all have room for the deepest
    assert [bool(stage.embedding) for stage in theirs] == [True, False, False, False]
    assert [bool(stage.head) for stage in theirs] == [False, False, False, True]


def test_fewer_kv_heads_than_devices_are_there_more_than_once() -> None:
    two, four = (stages(Arrangement.of(tiny(f"mesh={{tensor: {tensor}}}")))[0].blocks for tensor in (2, 4))
    assert four > two / 2
