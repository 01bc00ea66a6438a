"""A program small enough to count by hand, and its text as XLA schedules it: for the CPU, and as recorded for H100s.

On pipeline 2 x data 2 x tensor 2: five ticks, each of which may run three layers and sends to the next stage; weights
are gathered before, and two arrays are summed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

AXES = ("pipeline", "data", "tensor")
TICKS, LAYERS, ROWS, WIDTH = 5, 3, 64, 32
RECORDED = Path(__file__).parents[2] / "golden/scheduled_h100.txt"
"""By jax 0.10.2, without the tables of files and lines."""


def recorded() -> str:
    return RECORDED.read_text()


@cache
def for_cpu() -> str:
    return compiled_text(jax.devices()[:8])


def compiled_text(devices: Sequence[jax.Device]) -> str:
    mesh = Mesh(np.asarray(devices).reshape(2, 2, 2), AXES)
    rows, sums = PartitionSpec(AXES), PartitionSpec(AXES[:2])
    specs = (rows, PartitionSpec(None, None, "data"), sums, sums)
    step = jax.jit(
        jax.shard_map(
            _step, mesh=mesh, in_specs=specs, out_specs=(rows, PartitionSpec(), PartitionSpec()), check_vma=False
        )
    )
    shapes = (
        jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16),
        jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.bfloat16),
        jax.ShapeDtypeStruct((4 * 40,), jnp.float32),
        jax.ShapeDtypeStruct((4 * 24,), jnp.float32),
    )
    with jax.set_mesh(mesh), jax.default_device(mesh.devices.flat[0]):
        return step.lower(*shapes).compile().as_text()


def _step(x: jax.Array, weights: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    stage = lax.axis_index("pipeline")
    weights = lax.all_gather(weights, "data", axis=2, tiled=True)
    a, b = lax.psum((a, b), ("pipeline", "data"))

    def tick(x: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        y = lax.cond(number >= stage, jax.jit(pipeline_forward_0), lambda x, _: jnp.zeros_like(x), x, weights)
        return lax.ppermute(y, "pipeline", [(0, 1)]), None

    return lax.scan(tick, x, jnp.arange(TICKS))[0], 2 * a, b


def pipeline_forward_0(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Three layers; the name is that of a unit of a pipeline."""

    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        y = lax.all_gather(x, "tensor", axis=0, tiled=True) @ weight
        return lax.psum_scatter(y, "tensor", scatter_dimension=0, tiled=True), None

    return lax.scan(layer, x, weights)[0]
