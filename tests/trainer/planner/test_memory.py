"""Closed forms of memory against the traced step's, and against what is known of other trainers."""

from __future__ import annotations

import dataclasses

import pytest

from tests.trainer.planner.arrangements import LARGE, large, tiny
from trainer.config import Config
from trainer.description import describe, parameters
from trainer.planner.arrangement import MOMENTS, Arrangement
from trainer.planner.estimate import estimate
from trainer.planner.flow import asynchronous
from trainer.planner.gpu import load
from trainer.planner.kept import bytes_on_device, bytes_on_host
from trainer.planner.memory import Memory, stage_memory
from trainer.planner.practice import MEGATRON_2021, MEGATRON_CORE, MESHWRIGHT
from trainer.planner.sizes import block

H100 = load("h100")
ALONE = dataclasses.replace(MESHWRIGHT, micro_gradients=False)
"""As `describe` counts: without the gradients of one micro-batch."""


def worst(config: Config) -> Memory:
    return max(stage_memory(Arrangement.of(config, ALONE), H100), key=lambda memory: memory.total)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("preset", LARGE)
def test_state_is_that_of_every_parameter_added_up(preset: str, stage: int) -> None:
    config = large(preset, f"zero.stage={stage}")
    held, memory = parameters(config), worst(config)
    for ours, theirs in (
        (memory.weights, sum(parameter.weights for parameter in held)),
        (memory.gradients, sum(parameter.gradients for parameter in held)),
        (memory.master + memory.optimizer, sum(parameter.optimizer for parameter in held)),
    ):
        assert ours == pytest.approx(theirs, rel=2e-3)  # padding


@pytest.mark.parametrize("optimizer", MOMENTS)
def test_moments_are_those_that_the_optimizer_keeps(optimizer: str) -> None:
    config = tiny(f"optimizer.name={optimizer}", "precision.compute=float32", "zero.stage=0")
    memory = worst(config)
    assert memory.weights == 0  # the master is the weight
    assert memory.master + memory.optimizer == sum(parameter.optimizer for parameter in parameters(config))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "layout",
    [
        ["mesh={tensor: 2}"],
        ["mesh={pipeline: 2, tensor: 2}"],
        ["mesh={pipeline: 2}", "pipeline.keep=inputs"],
        ["mesh={pipeline: 2}", "pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2"],
    ],
    ids=" ".join,
)
def test_activations_kept_are_those_of_the_traced_step(layout: list[str], recompute: str) -> None:
    """But for the block at work, which `describe` does not count."""
    config = tiny(*layout, f"recompute={recompute}", "batch.micro=2")
    arrangement = Arrangement.of(config, ALONE)
    memory = worst(config)
    one_layer = dataclasses.replace(
        arrangement, recompute="none", keeps_inputs=False, layers=(1,), pipeline=1, flow=asynchronous(1, 1, 1)
    )
    without_scores = dataclasses.replace(one_layer, practice=dataclasses.replace(ALONE, scores_at_work=0))
    kept = stage_memory(without_scores, H100)[0].activations / 2  # at work is the same, and copies of scores
    at_work = stage_memory(one_layer, H100)[0].activations - kept
    assert memory.activations + memory.pipeline - at_work == pytest.approx(
        describe(config).memory.activations, rel=0.05
    )


def test_bytes_per_parameter_are_those_that_megatron_states() -> None:
    """Its distributed optimizer: 6 + 12/d for bfloat16 with float32 gradients, 4 + 16/d for float16."""
    arrangement = dataclasses.replace(Arrangement.of(large("llama3-8b", "zero.stage=1")), practice=MEGATRON_CORE)
    for sum_itemsize, expected in ((4, 6 + 12 / 16), (2, 4 + 16 / 16)):
        memory = stage_memory(dataclasses.replace(arrangement, sum_itemsize=sum_itemsize), H100)[0]
        state = memory.weights + memory.gradients + memory.master + memory.optimizer
        parameters_held = memory.master / 4 * arrangement.data
        assert state / parameters_held == pytest.approx(expected)


def test_a_block_of_megatron_keeps_34_bytes_and_its_scores() -> None:
    """Korthikanti et al. 2022, equations 1 and 2: s·b·h·(10 + 24/t + 5·a·s/(h·t)) bytes."""
    config = large("gpt3-175b", "mesh={pipeline: 1, data: 4, tensor: 8}")
    model, tokens = config.model, 2048
    arrangement = dataclasses.replace(Arrangement.of(config), practice=MEGATRON_2021, flow=asynchronous(1, 1, 1))
    block = tokens * model.hidden * (10 + 24 / 8 + 5 * model.heads * tokens / model.hidden / 8)
    assert stage_memory(arrangement, H100)[0].activations == pytest.approx((model.layers + 1) * block)


def test_the_first_stage_of_megatron_is_the_fullest_and_ours_are_alike() -> None:
    config = large("llama3-70b")
    arrangement = Arrangement.of(config, MEGATRON_CORE)
    theirs = dataclasses.replace(arrangement, flow=asynchronous(4, 1, arrangement.micro_batches))
    assert estimate(theirs, H100).worst_stage == 0
    assert len({memory.total for memory in stage_memory(Arrangement.of(config), H100)}) == 1


def test_what_does_not_fit() -> None:
    config = large("llama3-70b", "recompute=full")
    assert estimate(Arrangement.of(config), H100).fits
    one_node = large("llama3-70b", "mesh={pipeline: 1, data: 1, tensor: 8}")
    assert not estimate(Arrangement.of(one_node), H100).fits


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["reference", "pallas"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_what_is_offloaded_leaves_the_device_for_the_host(tensor: int, attention: str, recompute: str) -> None:
    config = tiny(
        f"mesh.tensor={tensor}",
        f"recompute={recompute}",
        f"attention.implementation={attention}",
        "offload.activations=host",
    )
    arrangement, traced = Arrangement.of(config), describe(config)
    of_block, layers = block(config.model, tensor), config.model.layers
    assert layers * bytes_on_device(arrangement, of_block) == pytest.approx(traced.memory.activations, rel=0.01)
    # The closed form does not count the log-sum-exp of kernels.
    assert layers * bytes_on_host(arrangement, of_block) == pytest.approx(traced.off_device.activations, rel=0.05)
    kept = dataclasses.replace(arrangement, offload=False)
    assert stage_memory(arrangement, H100)[0].activations <= stage_memory(kept, H100)[0].activations
    assert describe(tiny(f"recompute={recompute}")).off_device.activations == 0
