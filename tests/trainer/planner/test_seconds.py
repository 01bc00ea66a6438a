"""Time: FLOPs are those of the traced step; the rest obeys what everybody who trains has seen."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.trainer.planner.arrangements import large, tiny
from trainer.flops import flops
from trainer.metrics import model_flops_per_token
from trainer.planner.arrangement import Arrangement
from trainer.planner.estimate import Estimate, estimate
from trainer.planner.flow import asynchronous
from trainer.planner.gpu import load
from trainer.planner.plan import plan
from trainer.planner.practice import MEGATRON_2021, MEGATRON_CORE, MESHWRIGHT
from trainer.planner.seconds import Seconds
from trainer.trace import trace_step

H100 = load("h100")
LAYOUTS = {
    "tensor": ["mesh={data: 2, tensor: 2}"],
    "stages": ["mesh={pipeline: 2, data: 2}"],
    "uneven": ["mesh={pipeline: 2}", "pipeline.layers=[1, 3]", "pipeline.head=last"],
    "inputs": ["mesh={pipeline: 2}", "pipeline.keep=inputs"],
}


def planned(preset: str, *overrides: str, **changes: object) -> Estimate:
    arrangement = Arrangement.of(large(preset, *overrides))
    return estimate(dataclasses.replace(arrangement, **changes), H100)  # type: ignore[arg-type]


def seconds(preset: str, *overrides: str, **changes: object) -> Seconds:
    return planned(preset, *overrides, **changes).seconds


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_flops_are_those_of_the_traced_step(layout: str, recompute: str) -> None:
    config = tiny(*LAYOUTS[layout], f"recompute={recompute}")
    trace = trace_step(config)
    devices = math.prod(config.mesh.sizes.values())
    counted = sum(flops(trace.program, shares) for shares in trace.shares) * devices / len(trace.shares)
    if layout == "uneven":  # every stage has the head in its program, and one uses it
        counted = pytest.approx(counted, rel=0.15)
    assert estimate(Arrangement.of(config), H100).executed_flops == counted


def test_without_repetition_the_two_utilisations_differ_by_the_half_of_attention_that_is_masked() -> None:
    one = planned("llama3-8b", "recompute=none")
    model = one.arrangement.model
    masked = 6 * model.layers * model.heads * model.dim_per_head * one.arrangement.sequence
    per_token = model_flops_per_token(model, one.arrangement.sequence)
    assert one.hfu / one.mfu == pytest.approx((per_token + masked) / per_token)
    assert 0.05 < one.mfu < 0.7


def test_a_step_is_the_sum_of_what_it_is_spent_on() -> None:
    spent = seconds("gpt3-175b")
    assert spent.total == pytest.approx(sum(dataclasses.asdict(spent).values()))
    assert all(value >= 0 for value in dataclasses.asdict(spent).values())


def test_more_micro_batches_make_the_bubble_a_smaller_part() -> None:
    few, many = (seconds("gpt3-175b", f"batch.global={batch}", "zero.stage=0") for batch in (64, 256))
    assert many.bubble == pytest.approx(few.bubble)  # as many rounds as ever
    assert many.matmul == pytest.approx(4 * few.matmul)


def test_interleaving_divides_the_bubble_and_sends_more() -> None:
    plain = seconds("gpt3-175b", pipeline_of(1))
    twice = seconds("gpt3-175b", pipeline_of(2))
    assert twice.bubble == pytest.approx(plain.bubble / 2, rel=0.01)
    assert twice.stages > plain.stages


def pipeline_of(chunks: int) -> str:
    return f"pipeline={{schedule: interleaved_1f1b, virtual_stages: {chunks}}}"


def test_recomputing_costs_time() -> None:
    none, selective, full = (
        seconds("gpt3-175b", f"recompute={policy}").total for policy in ("none", "selective", "full")
    )
    assert none < selective < full < 1.4 * none


def test_tensor_parallelism_belongs_inside_a_node() -> None:
    arrangement = Arrangement.of(large("gpt3-175b"))
    inside, across = (estimate(arrangement, H100, gpus_per_node=size).seconds for size in (8, 4))
    assert across.tensor > 1.3 * inside.tensor
    assert across.matmul == inside.matmul


def test_small_matmuls_are_slower_for_each_flop() -> None:
    """More tensor ranks make narrower matrices."""
    rate = []
    for tensor in (1, 8):
        one = planned("llama3-8b", f"mesh={{data: 16, tensor: {tensor}}}")
        rate.append(one.executed_flops / one.arrangement.gpus / one.seconds.matmul)
    assert rate[1] < 0.95 * rate[0]


def test_flash_attention_pays_off_at_length() -> None:
    flash = dataclasses.replace(MESHWRIGHT, attention="flash")
    assert seconds("llama3-8b", practice=flash).attention < seconds("llama3-8b").attention / 3


def test_what_a_trainer_hides_is_mostly_gone() -> None:
    arrangement = dataclasses.replace(Arrangement.of(large("gpt3-175b", "pipeline.head=last")), practice=MEGATRON_CORE)
    shown = dataclasses.replace(MEGATRON_CORE, hides=frozenset())
    hidden, whole = (
        estimate(dataclasses.replace(arrangement, practice=practice), H100).seconds
        for practice in (MEGATRON_CORE, shown)
    )
    for name in ("tensor", "stages"):
        assert getattr(hidden, name) == pytest.approx((1 - H100.efficiency.overlap) * getattr(whole, name))
    assert hidden.data < whole.data  # as far as one micro-batch is long enough


def test_higher_stages_of_zero_send_for_every_micro_batch() -> None:
    changes = {"practice": dataclasses.replace(MESHWRIGHT, hides=frozenset())}
    batch = "batch={global: 64, micro: 1, sequence: 8192}"  # 4 micro-batches
    sent = [seconds("llama3-8b", batch, f"zero.stage={stage}", **changes).data for stage in range(4)]
    assert sent[1] < sent[0]  # 2 + 4 bytes a parameter, and 8
    assert sent[2] / sent[1] == pytest.approx((2 + 4 * 4) / (2 + 4), rel=0.01)
    assert sent[3] / sent[1] == pytest.approx((2 * 2 * 4 + 4 * 4) / (2 + 4), rel=0.01)


def test_the_slowest_of_asynchronous_stages_sets_the_pace() -> None:
    """The head is for the last stage alone; with a layer less there, it waits for the others instead."""
    arrangement = Arrangement.of(large("bloom-176b"), MEGATRON_2021)
    flow = asynchronous(10, 1, arrangement.micro_batches)
    even, short = (
        estimate(dataclasses.replace(arrangement, flow=flow, layers=layers), load("a100")).seconds
        for layers in ((7,) * 10, (7, *(7,) * 7, 8, 6))
    )
    assert even.matmul < short.matmul
    assert short.matmul < even.matmul * 8 / 7


def test_parts_of_a_micro_batch_hide_what_tensor_parallelism_sends() -> None:
    seconds = [
        estimate(Arrangement.of(large("llama3-8b", "mesh={tensor: 8}", "batch.micro=2", *parts)), load("h100")).seconds
        for parts in ((), ("batch.parts=2",))
    ]
    whole, halves = seconds
    assert 0.2 * whole.tensor < halves.tensor < 0.4 * whole.tensor  # twice the messages, and a fifth is not hidden
    assert halves.matmul == whole.matmul


def test_activations_cross_the_link_to_the_host_twice() -> None:
    """Back in full, and there as far as the forward pass does not hide it."""
    kept, on_host = (plan(tiny("recompute=full", f"offload.activations={tier}")) for tier in ("none", "host"))
    once = on_host.host_bytes * on_host.accumulation / H100.host_bandwidth
    assert kept.seconds.host == kept.host_bytes == 0
    assert once < on_host.seconds.host < 2 * once
