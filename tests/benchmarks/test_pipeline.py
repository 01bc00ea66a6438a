"""What pipelines promise, held by the programs that their benchmarks print: memory, FLOPs, bubbles."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks import pipeline_bubble, pipeline_flops, pipeline_memory, wire
from benchmarks.pipeline_program import Transit, moved_each_tick, ring, transits
from trainer.pipeline import make_schedule
from trainer.program import plan_layouts
from trainer.trace import trace_step

MEMORY = [pipeline_memory.Case("1f1b", 1, "residuals"), pipeline_memory.Case("interleaved_1f1b", 2, "inputs")]


@pytest.mark.parametrize("case", [MEMORY[0], pytest.param(MEMORY[1], marks=pytest.mark.sweep)], ids=str)
def test_memory_is_flat_in_the_number_of_micro_batches(case: pipeline_memory.Case) -> None:
    few, many = (pipeline_memory.measure(case.config(micro_batches)) for micro_batches in (8, 32))
    assert pipeline_memory.growth(few, many) <= pipeline_memory.ALLOWED / 4  # the rest is for four times as many
    assert few.ring == many.ring
    assert few.moved == many.moved == 0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("virtual", [1, 2])
def test_no_slot_of_the_ring_has_a_weights_shape(recompute: str, virtual: int) -> None:
    """Neither whole nor cut, of one layer or of a stage's, in whatever order the dims are."""
    config = wire.Case(3, 8, 2, recompute=recompute, pipeline=4, virtual=virtual).config
    kept = ring(trace_step(config).program, make_schedule(config, config.mesh.sizes).num_slots)
    assert kept, "a stage keeps at least its input"
    layouts = plan_layouts(config, config.mesh.sizes).values()
    of_layers = [layout.layer if layout.stacked else layout for layout in layouts]
    weights = {math.prod(shape) for layout in of_layers for shape in (layout.block_shape, layout.shard_shape)}
    assert not [array for array in kept if math.prod(array.shape[2:]) in weights]
    stage = {wire.DEPTH * size for size in weights}
    assert not [array for array in kept if math.prod(array.shape[1:]) in stage]


@pytest.mark.parametrize(
    "case",
    [
        pipeline_flops.Case(micro_batches=8),
        pipeline_flops.Case("interleaved_1f1b", 2, 8, tensor=2, recompute="selective"),
        pipeline_flops.Case(micro_batches=8, keep="inputs"),
    ],
    ids=str,
)
def test_a_stage_executes_what_is_of_use(case: pipeline_flops.Case) -> None:
    assert [executed / case.useful for executed in case.executed] == [1.0] * pipeline_flops.P


def test_a_whole_head_makes_the_last_stage_the_slow_one() -> None:
    spread, last = (pipeline_flops.Case(micro_batches=8, head=head).full_tick for head in ("spread", "last"))
    assert len(set(spread)) == 1
    assert last[0] == last[1] == last[2] < spread[0] < last[3]
    assert sum(last) == sum(spread)


def test_published_runs_have_the_bubbles_that_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline_bubble.main() == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    bubbles = {tuple(row[:4]): row[5] for row in rows if len(row) == 9}
    assert bubbles["1f1b", "12", "1", "128"] == "8.59%"  # BLOOM 176B
    assert bubbles["1f1b", "35", "1", "240"] == "14.17%"  # MT-NLG 530B


COMPILED = """\
HloModule step

%fused (p.1: f32[7,2,8]) -> f32[7,2,8] {
  %p.1 = f32[7,2,8]{2,1,0} parameter(0)
  ROOT %copy.1 = f32[7,2,8]{0,2,1} copy(%p.1)
}

%tick (p.2: (s32[], f32[7,2,8])) -> (s32[], f32[7,2,8]) {
  %p.2 = (s32[], f32[7,2,8]{2,1,0}) parameter(0)
  %start = (f32[8]{0}, f32[8]{0}) collective-permute-start(%x), source_target_pairs={{0,2},{2,4},{4,0}}
  %conditional.1 = (f32[8]{0}) conditional(%p, %t, %t), branch_computations={%a, %b}
  %fusion.1 = f32[7,2,8]{2,1,0} fusion(%y), kind=kLoop, calls=%fused
  %done = f32[8]{0} collective-permute-done(%start)
  %start.1 = (f32[8]{0}, f32[8]{0}) collective-permute-start(%z), source_target_pairs={{0,4},{2,0},{4,2}}
  %done.1 = f32[8]{0} collective-permute-done(%start.1)
  %transpose.1 = f32[2,7,8]{2,1,0} transpose(%fusion.1), dimensions={1,0,2}
  ROOT %tuple.1 = (s32[], f32[7,2,8]{2,1,0}) tuple(%i, %fusion.1)
}

ENTRY %main (p.3: f32[7,2,8]) -> f32[7,2,8] {
  %p.3 = f32[7,2,8]{2,1,0} parameter(0)
  %copy.2 = f32[7,2,8]{0,2,1} copy(%p.3)
  %while.1 = (s32[], f32[7,2,8]{2,1,0}) while(%tuple.2), condition=%until, body=%tick
  ROOT %copy.3 = f32[7,2,8]{2,1,0} copy(%w)
}
"""


def test_what_a_tick_moves_is_read_from_the_compiled_program() -> None:
    """The copy in the fusion and the transpose, and none that is done once."""
    assert moved_each_tick(COMPILED, [jax.ShapeDtypeStruct((7, 2, 8), jnp.float32)]) == 2
    assert moved_each_tick(COMPILED, [jax.ShapeDtypeStruct((7, 2, 9), jnp.float32)]) == 0


def test_what_is_scheduled_while_something_travels() -> None:
    assert transits(COMPILED) == [
        Transit("steady", "activation", units=1, fusions=1),
        Transit("steady", "cotangent", units=0, fusions=0),
    ]
