"""FLOPs are those that a device executes: by the shapes of the matmuls, on the stage that runs them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr

from sharding.pipeline.branch import branch
from trainer.config import Config
from trainer.flops import flops, kernels
from trainer.metrics import model_flops_per_token
from trainer.trace import trace_step
from trainer.wire import NO_SHARES

SEQUENCE, SEQUENCES = 48, 8
TOKENS = SEQUENCE * SEQUENCES
KEEPS = "residuals", "inputs"
DOWN = 144 * 64
BLOCK = 3 * 64 * 64 + 2 * 64 * 144 + DOWN + 2 * 64 * SEQUENCE
"""Products a token, forward: query, key, value and out; gate, up and down; scores, and their sum of values."""


def config(*overrides: str) -> Config:
    sizes = {"layers": 6, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 144, "vocab": 320, "context": SEQUENCE}
    batch = {"global": SEQUENCES, "micro": 2, "sequence": SEQUENCE}
    return Config.from_dict({"model": sizes, "batch": batch, "attention": {"implementation": "reference"}}, overrides)


def by_stage(config: Config) -> list[int]:
    """FLOPs of a device of each pipeline stage."""
    trace = trace_step(config)
    return [flops(trace.program, shares) for shares in trace.shares]


def test_a_step_executes_the_model_flops_and_the_masked_half_of_attention() -> None:
    model = config().model
    masked = 3 * 2 * model.layers * model.heads * model.dim_per_head * SEQUENCE  # per token
    per_token = model_flops_per_token(model, SEQUENCE) + masked
    assert by_stage(config()) == [TOKENS * per_token]


def test_recompute_is_executed_too() -> None:
    """In full: the forward pass of each layer again, but for the matmul that it ends with."""
    again = 2 * TOKENS * config().model.layers * (BLOCK - DOWN)
    assert by_stage(config("recompute=full")) == [by_stage(config())[0] + again]


def test_tensor_parallelism_shares_the_work_and_data_parallelism_the_batch() -> None:
    whole = by_stage(config())[0]
    assert by_stage(config("mesh.tensor=2")) == [whole // 2]
    assert by_stage(config("mesh.data=4")) == [whole // 4]


@pytest.mark.parametrize("head", ["spread", "last"])
def test_stages_together_execute_what_one_device_does(head: str) -> None:
    """With layers that do not divide, so that stages differ."""
    stages = by_stage(config("mesh.pipeline=4", f"pipeline.head={head}"))
    assert len(set(stages)) > 1
    assert sum(stages) == by_stage(config())[0]


def test_the_last_stage_has_the_head_alone() -> None:
    first, last = by_stage(config("mesh.pipeline=2", "pipeline.head=last"))
    assert last - first == 3 * 2 * TOKENS * 320 * 64


def test_a_stage_that_is_run_again_executes_its_forward_pass_once_more() -> None:
    residuals, inputs = (by_stage(config("mesh.pipeline=2", f"pipeline.keep={keep}")) for keep in KEEPS)
    assert [b - a for a, b in zip(residuals, inputs, strict=True)] == [2 * TOKENS * 3 * BLOCK] * 2


def traced(function: Callable[..., Any], *shapes: tuple[int, ...]) -> ClosedJaxpr:
    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def test_batched_and_contracted_dims() -> None:
    program = traced(lambda a, b: jnp.einsum("bijk,bkjl->bil", a, b), (3, 5, 7, 2), (3, 2, 7, 11))
    assert flops(program, {}) == 2 * 3 * 5 * 7 * 2 * 11


def test_loops_multiply_and_what_is_not_used_is_not_executed() -> None:
    def body(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return x @ x, x @ x @ x

    program = traced(lambda x: jax.lax.scan(body, x, length=5)[0], (4, 4))
    assert flops(program, {}) == 5 * 2 * 4**3


def test_a_branch_counts_as_often_as_it_is_taken() -> None:
    def step(x: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        return branch("work", number < 2, lambda x: x @ x, lambda x: x, x), None

    program = traced(lambda x: jax.lax.scan(step, x, jnp.arange(8))[0], (4, 4))
    assert flops(program, {"work": Fraction(2, 8)}) == 2 * 2 * 4**3


def test_what_cannot_be_counted_is_refused() -> None:
    def until_large(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x @ x, x)

    def convolve(x: jax.Array) -> jax.Array:
        return jax.lax.conv(x[None, None], x[None, None], (1, 1), "SAME")

    with pytest.raises(NotImplementedError, match="how often is known only when it runs"):
        flops(traced(until_large, (4, 4)), {})
    with pytest.raises(NotImplementedError, match="no rule for the FLOPs of conv_general_dilated"):
        flops(traced(convolve, (4, 4)), {})


PALLAS = ["attention.implementation=pallas"], "flash_forward", ("flash_d_queries", "flash_d_keys")
CUDNN = (
    ["attention={implementation: cudnn, over: sequence}", "precision.compute=bfloat16"],
    "cudnn_forward",
    ("cudnn_backward",),
)


@pytest.mark.parametrize(("overrides", "forward", "backward"), [PALLAS, CUDNN], ids=["pallas", "cudnn"])
@pytest.mark.parametrize(("recompute", "times"), [("none", 1), ("selective", 1), ("full", 2)])
def test_what_a_kernel_left_is_kept_unless_all_is_made_again(
    recompute: str, times: int, overrides: list[str], forward: str, backward: tuple[str, ...]
) -> None:
    """Of each layer and micro-batch."""
    traced = trace_step(config("mesh.tensor=2", "zero.stage=3", f"recompute={recompute}", *overrides))
    found = kernels(traced.program, NO_SHARES)
    runs = config().model.layers * SEQUENCES // 2
    assert found == {forward: times * runs} | dict.fromkeys(backward, runs)
