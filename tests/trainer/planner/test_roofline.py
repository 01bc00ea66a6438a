"""What instructions take: FLOPs of matmuls, and bytes that are really read and written."""

from __future__ import annotations

import dataclasses

import pytest

from trainer.planner.gpu import load
from trainer.planner.hlo import read
from trainer.planner.roofline import work

H100 = load("h100")
# A byte a second; 1,000 FLOP/s of 16 bits, 500 of 32.
GPU = dataclasses.replace(
    H100,
    memory_bandwidth=1,
    matmul_flops=1000,
    efficiency=dataclasses.replace(H100.efficiency, memory=1, matmul=1),
)
TEXT = """HloModule step, is_scheduled=true

%multiply (a: bf16[8,64], b: bf16[64,4]) -> f32[8,4] {
  %a = bf16[8,64]{1,0} parameter(0)
  %b = bf16[64,4]{1,0} parameter(1)
  ROOT %dot = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%one_layer (stack: f32[32,8], index: s32[]) -> f32[1,8] {
  %stack = f32[32,8]{1,0} parameter(0)
  %index = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %layer = f32[1,8]{1,0} dynamic-slice(%stack, %index, %zero), dynamic_slice_sizes={1,8}
}

%write_layer (into: f32[32,8], layer: f32[1,8], place: s32[]) -> f32[32,8] {
  %into = f32[32,8]{1,0} parameter(0)
  %layer.1 = f32[1,8]{1,0} parameter(1)
  %place = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %written = f32[32,8]{1,0} dynamic-update-slice(%into, %layer.1, %place, %zero.1)
}

ENTRY %main (p: bf16[8,64], q: bf16[64,4], s: f32[32,8], i: s32[]) -> f32[32,8] {
  %p = bf16[8,64]{1,0} parameter(0)
  %q = bf16[64,4]{1,0} parameter(1)
  %s = f32[32,8]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %matmul = f32[8,4]{1,0} fusion(%p, %q), kind=kCustom, calls=%multiply
  %sum = f32[32,8]{1,0} add(%s, %s)
  %slice = f32[1,8]{1,0} fusion(%s, %i), kind=kLoop, calls=%one_layer
  %kernel = bf16[8]{0} custom-call(%p), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="k/pallas_call"}
  ROOT %update = f32[32,8]{1,0} fusion(%s, %slice, %i), kind=kLoop, calls=%write_layer
}
"""


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("p", 0),
        ("matmul", 2 * (8 * 64 + 64 * 4) + 4 * 8 * 4),  # its bytes: its 4,096 FLOPs would take 4 seconds
        ("sum", 3 * 4 * 32 * 8),
        ("slice", 2 * 4 * 8 + 4),
        ("update", 2 * 4 * 8 + 4),
    ],
)
def test_bytes_that_are_read_and_written(name: str, seconds: float) -> None:
    module = read(TEXT)
    assert work(module, module.entry, module.entry.by_name[name], GPU, {}) == seconds


def test_flops_where_they_take_longer() -> None:
    module, flops = read(TEXT), 2 * 8 * 4 * 64
    matmul, fast = module.entry.by_name["matmul"], dataclasses.replace(GPU, memory_bandwidth=1e9)
    assert work(module, module.entry, matmul, fast, {}) == flops / 1000
    single = read(TEXT.replace("bf16", "f32"))
    assert work(single, single.entry, single.entry.by_name["matmul"], fast, {}) == flops / 500


def test_what_a_kernel_says_of_itself() -> None:
    """At the rate of attention, a part of that of matmuls."""
    module = read(TEXT)
    kernel, half = module.entry.by_name["kernel"], dataclasses.replace(GPU.efficiency, attention=0.5)
    slow = dataclasses.replace(GPU, memory_bandwidth=1e9, efficiency=half)
    assert work(module, module.entry, kernel, slow, {"k": 4000.0}) == 4000 / (1000 * 0.5)
    assert work(module, module.entry, kernel, GPU, {"k": 4000.0}) == 2 * 8 * 64 + 2 * 8
