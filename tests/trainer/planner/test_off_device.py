"""What is offloaded, as planned: what the compiled step sets aside, and the seconds that data sheets give."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from tests.trainer.planner.arrangements import TINY, large, tiny
from tests.trainer.planner.on_cpu import step_on_cpu
from tests.trainer.planner.test_compiled import INSTALLED
from trainer.config import Config
from trainer.description import describe, parameters
from trainer.planner import plan
from trainer.planner.arrangement import Arrangement
from trainer.planner.candidates import Space
from trainer.planner.compiled import compile_step
from trainer.planner.gpu import load
from trainer.planner.hlo import HloError
from trainer.planner.ledger import compare
from trainer.planner.links import Cluster
from trainer.planner.memory import stage_memory
from trainer.planner.practice import MESHWRIGHT
from trainer.planner.ranking import Ranked
from trainer.planner.show_compiled import compared
from trainer.program import Program

H100 = load("h100")
ALONE = dataclasses.replace(MESHWRIGHT, micro_gradients=False)
"""Without gradients on their way to their sum, which `describe` does not count."""
STREAMED = ("zero.stage=3", "offload={optimizer: host, parameters: host}")
LAYOUTS = {
    "optimizer": ("offload.optimizer=host", "zero.stage=1", "mesh={data: 4, tensor: 2}"),
    "half of it": ("offload={optimizer: host, optimizer_fraction: 0.5}", "zero.stage=2", "mesh={data: 4}"),
    "parameters": (*STREAMED, "mesh={data: 4, tensor: 2}", "batch.global=12"),
}
ON_ONE_GPU = (*STREAMED, "mesh={data: 1}", "batch.global=1", "model.ffn=256")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_that_offloads_is_given_and_gives_what_is_planned(name: str) -> None:
    """For the CPU's devices, which are there, and whose memory is their host's."""
    step = step_on_cpu(*LAYOUTS[name], "precision={}")
    made, ledger = plan(step.program.config), compare(step)
    batch = next(line.traced for line in ledger.held if line.name == "batch")
    on_host = made.off_device.weights + made.off_device.gradients / 2  # a sum of two, of which one leaves the step
    assert 0 <= step.state - made.state_bytes - on_host <= 2 * batch
    assert (on_host > 0) == (name == "parameters")
    odd = {line.name for line in ledger.unexplained}
    # On a CPU, XLA gathers embedding and head once for the first micro-batch and the loop over the others.
    assert odd == ({"all_gather over data, float32"} if name == "parameters" else set())
    assert {"weights", "moments", "gradients, summed"} <= {line.name for line in ledger.held}


@pytest.mark.skipif(not INSTALLED, reason="the extra `plan` is not installed")
@pytest.mark.parametrize("layout", [LAYOUTS["optimizer"], LAYOUTS["parameters"], ON_ONE_GPU], ids=" ".join)
def test_a_gpu_that_is_not_there_holds_what_is_planned(layout: tuple[str, ...]) -> None:
    config = tiny(*layout)
    found = compared(plan(config), compile_step(config, H100))
    batch_and_scalars = 2 * 4096
    assert 0 <= found["state"]["compiled"] - found["state"]["planned"] <= batch_and_scalars
    assert found["host"]["compiled"] == found["host"]["planned"]
    assert found["ledger"]["equal"]


@pytest.mark.parametrize(
    ("offload", "stage"),
    [
        *itertools.product(["optimizer: host", "optimizer: nvme, path: x"], range(4)),
        ("optimizer: host, parameters: host", 3),
    ],
)
def test_closed_forms_are_those_of_every_parameter_added_up(offload: str, stage: int) -> None:
    config = large("llama3-8b", f"zero.stage={stage}", f"offload={{{offload}}}")
    memory, held, away = (
        stage_memory(Arrangement.of(config, ALONE), H100)[0],
        parameters(config),
        describe(config).off_device,
    )
    assert memory.weights == pytest.approx(sum(parameter.weights for parameter in held), rel=2e-3)
    assert memory.gradients == pytest.approx(sum(parameter.gradients for parameter in held), rel=2e-3)
    assert memory.master == memory.optimizer == sum(parameter.optimizer for parameter in held) == 0
    if "parameters" not in offload:  # of streamed layers, not all of that is there at once
        assert memory.gathered == pytest.approx(describe(config).memory.gathered, rel=2e-3)
    elements = stage_memory(Arrangement.of(large("llama3-8b", f"zero.stage={stage}")), H100)[0].master / 4
    assert away.optimizer + away.nvme == pytest.approx(12 * elements, rel=2e-3)
    assert (away.nvme > 0) == ("nvme" in offload)


@pytest.mark.skipif(not INSTALLED, reason="the extra `plan` is not installed")
@pytest.mark.parametrize("micro_batches", [pytest.param(1, marks=pytest.mark.sweep), 2])
def test_where_layers_are_streamed_the_head_s_moment_is_the_fullest(micro_batches: int) -> None:
    """Two micro-batches are worked at side by side where they are all."""
    small_layers = ("model.vocab=16384", "recompute=full", "attention.implementation=pallas")
    config = tiny(*STREAMED, *small_layers, "mesh={data: 4}", f"batch.global={4 * micro_batches}")
    compiled, memory = compile_step(config, H100).total, plan(config).memory
    assert memory.total - memory.overhead == pytest.approx(compiled, rel=0.15)


def test_of_streamed_layers_attention_counts_only_where_it_is_more_than_the_head() -> None:
    config = large("llama3-8b", *STREAMED, "recompute=full", "batch.sequence=1024")
    asked = ["attention.implementation=pallas"], ["attention.implementation=pallas", "batch.sequence=8192"]
    least, long = (plan(Config.from_dict(config.to_dict(), overrides)).memory for overrides in asked)
    scores = plan(
        Config.from_dict(config.to_dict(), ["attention.implementation=reference", "batch.sequence=8192"])
    ).memory
    assert least.logits == long.logits > scores.logits == 0
    assert least.total < long.total < 1.5 * least.total < scores.total


def test_streamed_layers_take_no_more_of_a_device_however_many_there_are() -> None:
    kept = "offload={optimizer: host, parameters: host, activations: host}"
    shallow, deep = (plan(tiny(f"model.layers={n}", "recompute=full", "zero.stage=3", kept)) for n in (4, 32))
    assert shallow.memory == deep.memory
    assert deep.off_device.weights == 8 * shallow.off_device.weights
    assert deep.off_device.gradients == 8 * shallow.off_device.gradients


def test_the_update_takes_as_long_as_its_slowest_lane() -> None:
    asked = large("llama3-8b", "zero.stage=3", "offload.optimizer=host")
    made = plan(asked)
    elements = made.off_device.optimizer / 12
    seconds = {name: lane.seconds for name, lane in made.host_update.lanes.items()}
    assert seconds["down"] == pytest.approx(4 * elements / H100.host_bandwidth, rel=2e-3)
    assert seconds["up"] == pytest.approx(2 * elements / H100.host_bandwidth, rel=2e-3)
    assert seconds["update"] == pytest.approx((24 + 4 + 2) * elements / H100.host_memory_bandwidth, rel=2e-3)
    assert made.seconds.host_update == max(seconds.values())
    assert made.seconds_per_step > plan(large("llama3-8b", "zero.stage=3")).seconds_per_step
    on_nvme = plan(Config.from_dict(asked.to_dict(), ["offload={optimizer: nvme, path: x}"]))
    assert on_nvme.seconds.host_update == pytest.approx(24 * elements / H100.nvme_bandwidth, rel=2e-3)


def test_streamed_weights_cross_the_link_twice_for_each_micro_batch_and_gradients_come_back() -> None:
    config = tiny(*STREAMED, "batch.global=4")
    made, bandwidth = plan(config), H100.host_bandwidth
    weights = 2 * made.off_device.weights / bandwidth
    sums = made.off_device.gradients / 2 / bandwidth  # of two that are there with several micro-batches
    least, most = 4 * weights + 3 * sums, 4 * weights + 7 * sums
    assert least < made.seconds.host < most
    assert "down" in made.host_update.lanes  # embedding and head


def test_what_is_searched_keeps_what_is_offloaded() -> None:
    config = Config.from_dict(TINY, STREAMED)
    found = list(Ranked(Space(config, 4), Cluster(H100, 8)))
    assert {(choice.candidate.pipeline, choice.candidate.zero) for choice in found} == {(1, 3)}
    for choice in found:
        assert Config.from_dict(choice.candidate.on(config.to_dict())).offload == config.offload


def test_two_micro_batches_of_streamed_layers_are_not_compared() -> None:
    step = step_on_cpu(*LAYOUTS["parameters"], "precision={}")
    program = Program(Config.from_dict(step.program.config.to_dict(), ["batch.global=8"]), step.program.mesh)
    with pytest.raises(HloError, match="compare another number"):
        compare(dataclasses.replace(step, program=program))
