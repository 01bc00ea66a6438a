"""What a stage keeps of a micro-batch: nothing of its weights, and the same gradients however little it is.

Shapes: `B` rows (of a device), `L` layers, `D` model, `F` feed-forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from sharding import collectives
from sharding.layout import plan
from sharding.mesh import AXES
from sharding.pipeline.branch import LAYER, branch
from sharding.pipeline.keep import KeepInputs, KeepResiduals
from sharding.zero import FETCHED, Zero
from tests.sharding.regions import make, manual, sizes

B, L, D, F = 5, 3, 8, 12
MESH = sizes(data=2)
SHAPES = {"up": ((L, D, F), ("layers", "embed", "ffn")), "down": ((L, F, D), ("layers", "ffn", "embed"))}
ALL, NOT_ALL = np.array([3, 4, 5], np.int32), np.array([4, -1, 5], np.int32)
"""Numbers of the layers, the second of which may be missing."""


@dataclass(frozen=True)
class Kind:
    """Of a stage: two matrices a layer, of which one goes through a function; in bfloat16, with a mask."""

    zero: int
    may_lack: bool = False
    unrolled: bool = False
    policy: Any = None

    @property
    def rule(self) -> Zero:
        return Zero(self.zero, jnp.bfloat16, jnp.float32)

    @property
    def layouts(self) -> dict[str, Any]:
        axes = ("data",) if self.zero else ()
        return {name: plan(shape, names, MESH, zero_axes=axes) for name, (shape, names) in SHAPES.items()}

    def __call__(self, learned: Any, others: Any, x: jax.Array) -> jax.Array:
        gathered, mask, numbers = others
        leaves = {name: (leaf, gathered[name]) for name, leaf in learned.items()}

        def one(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            number, leaves = layer
            up, down = (
                self.rule.fetch(*leaves[name], self.layouts[name].layer).astype(x.dtype) for name in ("up", "down")
            )
            hidden = jnp.tanh(x @ jnp.sin(up)) * mask * number.astype(x.dtype)
            return x + hidden @ down, None

        step = one if self.policy is None else jax.checkpoint(one, policy=self.policy)
        if self.may_lack:
            inner = step
            step = lambda x, layer: branch(LAYER, layer[0] >= 0, inner, lambda x, _: (x, None), x, layer)  # noqa: E731
        if not self.unrolled:
            return jax.lax.scan(step, x, (numbers, leaves))[0]
        for index in range(L):
            x, _ = step(x, jax.tree.map(lambda leaf, index=index: leaf[index], (numbers, leaves)))
        return x


NOT_FETCHED = jax.checkpoint_policies.save_anything_except_these_names(FETCHED)
KINDS = {
    "whole": Kind(0),
    "whole, unrolled": Kind(0, unrolled=True),
    "gathered before": Kind(2, may_lack=True),
    "gathered by the layer": Kind(3),
    "gathered by the layer, a layer missing": Kind(3, may_lack=True, policy=NOT_FETCHED),
    "all recomputed, a layer missing, unrolled": Kind(
        3, may_lack=True, unrolled=True, policy=jax.checkpoint_policies.nothing_saveable
    ),
}
"""With the policy as the train step has it, and without, when JAX itself saves what was gathered."""


def arrays(kind: Kind) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
    """Weights at rest, activations and cotangents."""
    random = np.random.default_rng(0)
    weights = {
        name: layout.store(jnp.asarray(random.normal(size=layout.shape), jnp.float32))
        for name, layout in kind.layouts.items()
    }
    return weights, *(jnp.asarray(random.normal(size=(2 * B, D)), jnp.bfloat16) for _ in range(2))


def run(kind: Kind, numbers: np.ndarray, local: Callable[..., Any], out_specs: Any) -> Any:
    """`local(learned, others, x, d_y)` of one device's blocks, in a manual region."""

    def region(weights: Any, x: jax.Array, d_y: jax.Array) -> Any:
        leaves = {name: kind.rule.before(weight, kind.layouts[name]) for name, weight in weights.items()}
        learned = {name: leaf for name, (leaf, _) in leaves.items()}
        gathered = {name: leaf for name, (_, leaf) in leaves.items()}
        mask = jnp.ones((B, F), jnp.bfloat16).at[0, 0].set(0)
        return local(learned, (gathered, mask, jnp.asarray(numbers)), x, d_y)

    specs = {name: layout.spec for name, layout in kind.layouts.items()}
    batch = PartitionSpec("data")
    return manual(make(data=2), region, (specs, batch, batch), out_specs)(*arrays(kind))


@pytest.mark.parametrize("name", KINDS)
def test_nothing_of_the_weights_is_kept(name: str) -> None:
    kind, shapes = KINDS[name], []

    def kept_of_two(learned: Any, others: Any, x: jax.Array, d_y: jax.Array) -> jax.Array:
        keeper = KeepResiduals(kind, learned, others, x)
        one, other = (keeper.forward(learned, others, given)[1] for given in (x, x + 1))
        shapes.extend(array.shape for array in one)
        differ = jnp.stack([jnp.any(a != b) for a, b in zip(one, other, strict=True)])
        return collectives.all_max(collectives.varying(differ.astype(jnp.int32), ["data"]), ["data"])

    assert run(kind, ALL, kept_of_two, PartitionSpec()).all(), "all that is kept depends on what came in"
    matrix = {math.prod(shape[1:]) for shape, _ in SHAPES.values()} | {D * F // 2}
    sizes_of_weights = matrix | {L * size for size in matrix}
    assert shapes
    assert not sizes_of_weights & {math.prod(shape) for shape in shapes}, shapes


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_same_whatever_is_kept(name: str) -> None:
    kind = KINDS[name]

    def gradients(learned: Any, others: Any, x: jax.Array, d_y: jax.Array) -> Any:
        keepers = KeepResiduals(kind, learned, others, x), KeepInputs(kind)
        found = []
        for keeper in keepers:
            y, kept = keeper.forward(learned, others, x)
            d_learned, d_x = keeper.backward(learned, others, kept, d_y)
            found.append((y, d_x, jax.tree.map(lambda g: collectives.varying(g, AXES)[None], d_learned)))
        return found

    numbers = NOT_ALL if kind.may_lack else ALL
    residuals, inputs = run(kind, numbers, gradients, PartitionSpec("data"))
    for one, other in zip(jax.tree.leaves(residuals), jax.tree.leaves(inputs), strict=True):
        assert jnp.any(one != 0)
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), atol=0.01 * jnp.abs(one).max())


def test_inputs_are_all_that_is_kept_of_them() -> None:
    kind = KINDS["whole"]

    def kept(learned: Any, others: Any, x: jax.Array, d_y: jax.Array) -> jax.Array:
        (only,) = KeepInputs(kind).forward(learned, others, x)[1]
        return only

    np.testing.assert_array_equal(run(kind, ALL, kept, PartitionSpec("data")), arrays(kind)[1])
