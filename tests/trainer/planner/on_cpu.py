"""Steps compiled for the CPU's devices, which are there, once for all tests."""

from __future__ import annotations

from functools import cache

import jax
import pytest

from tests.trainer.planner.arrangements import tiny
from trainer.planner import compiled
from trainer.planner.compiled import CompiledStep, compile_step
from trainer.planner.gpu import load

LAYERED = ("mesh={data: 4, tensor: 2}", "zero.stage=3", "precision={}")
PIPELINED = ("mesh={pipeline: 2, data: 2, tensor: 2}", "pipeline.head=last", "zero.stage=1", "precision={}")
"""In float32: XLA has no other collectives on CPU."""


@cache
def step_on_cpu(*overrides: str) -> CompiledStep:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "absent_gpus", lambda gpu, number, gpus_per_node: jax.devices()[:number])
        return compile_step(tiny(*overrides), load("h100"))
