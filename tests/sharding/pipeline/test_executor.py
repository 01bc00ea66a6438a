"""The executor on a model that is no transformer: any schedule gives the loss and gradients of one device.

Shapes: `M` micro-batches, `B` rows of one, `I` inputs, `D` model, `O` outputs, `L` layers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from sharding import collectives
from sharding.layout import Dim, Layout
from sharding.mesh import AXES
from sharding.pipeline.branch import LAYER, branch, unit_name
from sharding.pipeline.executor import AXIS, Leaves, Parts, Pipeline
from sharding.pipeline.makers import make as make_schedule
from sharding.pipeline.routes import route
from sharding.pipeline.schedule import Schedule
from sharding.pipeline.stages import Stages, split_layers
from tests.sharding.pipeline.tables import random_schedule
from tests.sharding.regions import make, manual

B, I, D, O, MATRIX = 3, 4, 6, 8, "blocks.matrix"  # noqa: E741
Arrays = dict[str, jax.Array]
WAITING = random_schedule(Random(3), 2, 2, 5, zeal=0.5)
"""A table of one's own."""


class Data(NamedTuple):
    inputs: jax.Array  # [M, B, I]
    targets: jax.Array  # [M, B, O]


def weights(layers: int) -> Arrays:
    random = np.random.default_rng(0)
    shapes = {"embed": (I, D), MATRIX: (layers, D, D), "blocks.bias": (layers, D), "head": (D, O)}
    return {name: jnp.asarray(random.normal(scale=0.5, size=shape), jnp.float32) for name, shape in shapes.items()}


def data(micro_batches: int, rows: int = B) -> Data:
    random = np.random.default_rng(1)
    return Data(*(jnp.asarray(random.normal(size=(micro_batches, rows, n)), jnp.float32) for n in (I, O)))


def layer(x: jax.Array, matrix: jax.Array, bias: jax.Array, number: jax.Array) -> jax.Array:
    """The number matters, as it does for dropout."""
    return x + jnp.tanh(x @ matrix + bias * (1 + number))


def on_one_device(weights: Arrays, data: Data) -> jax.Array:
    x = data.inputs @ weights["embed"]
    for number in range(len(weights[MATRIX])):
        x = layer(x, weights[MATRIX][number], weights["blocks.bias"][number], jnp.float32(number))
    return jnp.sum((x @ weights["head"] - data.targets) ** 2)


def parts(head: str) -> Parts:
    """The same in three; with `spread`, a stage holds its share of the inputs and outputs."""
    cut = [AXIS] if head == "spread" else []

    def mine(x: jax.Array, size: int) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x, collectives.place(cut) * size, size, axis=1)

    def embed(leaves: Leaves, batch: Data) -> jax.Array:
        weight, _ = leaves["embed"]
        return collectives.all_sum(mine(batch.inputs, len(weight)) @ weight, cut)

    def blocks(leaves: Leaves, x: jax.Array, batch: Data, numbers: jax.Array) -> jax.Array:
        def one(x: jax.Array, xs: Any) -> tuple[jax.Array, None]:
            number, matrix, bias = xs
            work = lambda x: layer(x, matrix, bias, number.astype(jnp.float32))  # noqa: E731
            return branch(LAYER, number >= 0, work, lambda x: x, x), None

        return jax.lax.scan(one, x, (numbers, leaves[MATRIX][0], leaves["blocks.bias"][0]))[0]

    def loss(leaves: Leaves, x: jax.Array, batch: Data) -> jax.Array:
        weight, _ = leaves["head"]
        wrong = x @ weight - mine(batch.targets, weight.shape[1])
        return collectives.all_sum(jnp.sum(wrong**2), cut)

    return Parts(embed, blocks, loss, stack="blocks.")


def layouts(stages: Stages, head: str, layers: int) -> dict[str, Layout]:
    stacked = Dim(layers, (AXIS,), stages.num_stages, order=stages.order)
    cut = ((AXIS,), stages.num_stages) if head == "spread" else ()
    return {
        "embed": Layout((Dim(I, *cut), Dim(D))),
        MATRIX: Layout((stacked, Dim(D), Dim(D)), stacked=True),
        "blocks.bias": Layout((stacked, Dim(D)), stacked=True),
        "head": Layout((Dim(D), Dim(O, *cut))),
    }


def on_stages(pipeline: Pipeline, laid_out: dict[str, Layout]) -> Callable[[Arrays, Data], Any]:
    """(weights at rest, data) -> the loss alone, the loss and the gradients, on a mesh; jitted."""
    mesh = make(pipeline=pipeline.stages.num_stages)
    specs = {name: layout.spec for name, layout in laid_out.items()}

    def local(weights: Arrays, data: Data) -> tuple[jax.Array, jax.Array, Arrays]:
        leaves = {name: (collectives.varying(x, AXES), None) for name, x in weights.items()}
        loss, gradients = pipeline.loss_and_gradients(parts(pipeline.head), leaves, data)
        gradients = {
            name: x if laid_out[name].sharded_axes else collectives.all_sum(x, [AXIS]) for name, x in gradients.items()
        }
        return pipeline.loss(parts(pipeline.head), leaves, data), loss, gradients

    return manual(mesh, local, (specs, PartitionSpec()), (PartitionSpec(), PartitionSpec(), specs))


# A schedule, the number of layers or how many each virtual stage has, what is kept, and where the head is.
CASES: dict[str, tuple[Schedule, int | list[int], str, str]] = {
    "gpipe": (make_schedule("gpipe", 4, 1, 3), 4, "residuals", "spread"),
    "gpipe, inputs": (make_schedule("gpipe", 2, 1, 4), 4, "inputs", "last"),
    "1f1b": (make_schedule("1f1b", 4, 1, 6), 4, "residuals", "last"),
    "1f1b, inputs": (make_schedule("1f1b", 4, 1, 9), 4, "inputs", "spread"),
    "1f1b, one micro-batch": (make_schedule("1f1b", 2, 1, 1), [1, 3], "residuals", "spread"),
    "interleaved": (make_schedule("interleaved_1f1b", 2, 2, 5), 4, "residuals", "spread"),
    "interleaved, inputs": (make_schedule("interleaved_1f1b", 2, 3, 4), [1, 2, 1, 1, 3, 1], "inputs", "last"),
    "a table of one's own": (WAITING, [2, 1, 1, 3], "residuals", "last"),
    "a table of one's own, inputs": (WAITING, 4, "inputs", "spread"),
}


@pytest.mark.parametrize("case", CASES)
def test_any_schedule_gives_the_gradients_of_one_device(case: str) -> None:
    schedule, split, keep, head = CASES[case]
    layers, explicit = (split, None) if isinstance(split, int) else (sum(split), split)
    stages = split_layers(layers, schedule.num_stages, schedule.num_chunks, explicit)
    pipeline = Pipeline(schedule, stages, keep, head)
    laid_out = layouts(stages, head, layers)
    whole, micro_batches = weights(layers), data(schedule.num_micro_batches)
    stored = {name: layout.store(whole[name]) for name, layout in laid_out.items()}
    alone, loss, gradients = on_stages(pipeline, laid_out)(stored, micro_batches)

    expected, expected_gradients = jax.value_and_grad(on_one_device)(whole, micro_batches)
    np.testing.assert_allclose([alone, loss], expected, rtol=1e-5)
    for name, x in expected_gradients.items():
        found = laid_out[name].logical(gradients[name])
        np.testing.assert_allclose(found, x, atol=1e-5 * np.abs(x).max(), err_msg=name)
        np.testing.assert_array_equal(laid_out[name].store(found), gradients[name], err_msg="padding is 0")


def test_in_the_table_of_ones_own_stages_and_messages_wait() -> None:
    """Or the tests above would say nothing of it."""
    assert min(route(WAITING).num_slots) > 1
    assert not WAITING.runs.any(axis=(1, 2)).all()


def growth(name: str, rows: int) -> float:
    """Bytes of memory, besides arguments and results, that each further micro-batch of so many rows costs."""
    few, many = 4, 12

    def memory(micro_batches: int) -> int:
        stages = split_layers(4, 2, 1, None)
        laid_out = layouts(stages, "spread", 4)
        pipeline = Pipeline(make_schedule(name, 2, 1, micro_batches), stages, "inputs", "spread")
        stored = {leaf: jnp.zeros(layout.stored_shape) for leaf, layout in laid_out.items()}
        region: Any = on_stages(pipeline, laid_out)
        return region.lower(stored, data(micro_batches, rows)).compile().memory_analysis().temp_size_in_bytes

    return (memory(many) - memory(few)) / (many - few)


def test_1f1b_takes_no_more_memory_for_more_micro_batches() -> None:
    """Beyond its rows of the table. GPipe keeps what comes in and the loss's cotangent of every one."""
    rows = 100
    activation = rows * D * 4
    assert growth("1f1b", rows) < 100
    assert growth("gpipe", rows) >= 2 * activation


def test_how_often_each_stage_takes_a_branch() -> None:
    """1f1b, 3 stages, 4 micro-batches: 2 ticks of warm-up, 4 steady, 2 of drain; 4 layers, so two stages lack one."""
    pipeline = Pipeline(make_schedule("1f1b", 3, 1, 4), split_layers(4, 3, 1, None), "residuals", "last")
    first, middle, last = (pipeline.shares(stage) for stage in range(3))
    assert [shares[LAYER] for shares in (first, middle, last)] == [1, Fraction(1, 2), Fraction(1, 2)]
    warm_up, steady, drain = (unit_name("forward", phase) for phase in range(3))
    assert [first[warm_up], first[steady], first[drain]] == [1, Fraction(1, 2), 0]
    assert [middle[warm_up], middle[steady]] == [Fraction(1, 2), Fraction(3, 4)]
    assert [last[warm_up], last[steady]] == [0, 1]
    assert [first[unit_name("backward", phase)] for phase in range(3)] == [0, Fraction(1, 2), 1]
    # Only the first stage has the embedding, and only the last the head.
    assert [shares[unit_name("embed", 0)] for shares in (first, middle, last)] == [1, 0, 0]
    assert [shares[unit_name("head", 1)] for shares in (first, middle, last)] == [0, 0, 1]


def test_a_spread_head_is_the_work_of_all() -> None:
    schedule, stages = make_schedule("1f1b", 3, 1, 4), split_layers(4, 3, 1, None)
    shares = [Pipeline(schedule, stages, "residuals", "spread").shares(stage) for stage in range(3)]
    assert [share[unit_name("head", 1)] for share in shares] == [1, 1, 1]
    assert [share[unit_name("embed", 0)] for share in shares] == [1, 1, 1]
