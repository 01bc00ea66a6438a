"""ZeRO 0-3 on a toy model: the gradient of one device, whatever the stage, and the dtypes it promises on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from sharding import collectives
from sharding.layout import Layout, plan
from sharding.mesh import ZERO_AXES
from sharding.zero import Zero
from tests.sharding.regions import collectives_of, everywhere, make, manual

SPLIT = ("replica", "data", "context", "tensor")  # the toy's samples are cut over all of these
MESHES = [{"data": 1}, {"data": 4}, {"replica": 2, "data": 2}, {"data": 2, "tensor": 2}, {"data": 2, "context": 3}]
SHAPES = {
    "stack": ((3, 5, 5), ("layers", "embed", "head_dim")),  # 5 is padded everywhere
    "scale": ((3, 5), ("layers", "embed")),
    "bias": ((5,), ("embed",)),
}
Arrays = dict[str, jax.Array]


def layouts(mesh: Mesh, stage: int, persist_below: int = 0) -> dict[str, Layout]:
    return {
        name: plan(shape, axes, dict(mesh.shape), zero_axes=ZERO_AXES if stage else (), persist_below=persist_below)
        for name, (shape, axes) in SHAPES.items()
    }


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, (shape, _) in SHAPES.items()}


def toy(fetch: Callable[[str, Any], jax.Array], leaves: dict[str, Any], x: jax.Array) -> jax.Array:
    """A stack of layers, scanned over as a decoder's are; float32 scalar."""

    def layer(x: jax.Array, leaf: dict[str, Any]) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ fetch("stack", leaf["stack"]) * fetch("scale", leaf["scale"])), None

    stack = {name: leaves[name] for name in ("stack", "scale")}
    x, _ = jax.lax.scan(layer, x, stack)
    return jnp.sum(jnp.square((x + fetch("bias", leaves["bias"])).astype(jnp.float32)))


def stepper(mesh: Mesh, zero: Zero, laid_out: dict[str, Layout], micro_batches: int) -> Callable[..., Arrays]:
    """(masters at rest, samples) -> gradients at rest: the rule as a train step uses it."""

    def fetch(name: str, leaf: tuple[jax.Array, jax.Array | None]) -> jax.Array:
        layout = laid_out[name]
        return zero.fetch(*leaf, layout.layer if layout.stacked else layout)

    def local(masters: Arrays, x: jax.Array) -> Arrays:
        opened = {name: zero.before(master, laid_out[name]) for name, master in masters.items()}
        learned = {name: leaf for name, (leaf, _) in opened.items()}

        def loss(learned: Arrays, x: jax.Array) -> jax.Array:
            return toy(fetch, {name: (leaf, opened[name][1]) for name, leaf in learned.items()}, x)

        total = {name: jnp.zeros(leaf.shape, jnp.float32) for name, leaf in learned.items()}
        for micro in jnp.split(x.astype(zero.compute), micro_batches):
            gradients = jax.grad(loss)(learned, micro)
            total = {name: total[name] + gradient.astype(jnp.float32) for name, gradient in gradients.items()}
        return {name: zero.after(gradient, laid_out[name]) for name, gradient in total.items()}

    specs = {name: layout.spec for name, layout in laid_out.items()}
    return manual(mesh, local, (specs, P(SPLIT)), specs)


def gradients(
    stage: int, axes: dict[str, int], compute: DTypeLike = jnp.float32, persist_below: int = 0
) -> dict[str, np.ndarray]:
    mesh = make(**axes)
    laid_out = layouts(mesh, stage, persist_below)
    run = stepper(mesh, Zero(stage, compute, jnp.float32), laid_out, micro_batches=2)
    masters = {name: laid_out[name].store(jnp.asarray(x)) for name, x in values().items()}
    found = run(masters, samples())
    for name, gradient in found.items():
        assert gradient.dtype == jnp.float32
        padded = laid_out[name].store(laid_out[name].logical(gradient))
        np.testing.assert_array_equal(gradient, padded, err_msg=f"the padding of {name} has a gradient")
    return {name: np.asarray(laid_out[name].logical(gradient)) for name, gradient in found.items()}


def samples() -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=(48, 5)), jnp.float32)


def plain(compute: DTypeLike = jnp.float32) -> dict[str, np.ndarray]:
    """One device, jax.grad, nothing of ours."""
    weights = {name: jnp.asarray(x).astype(compute) for name, x in values().items()}
    return jax.grad(lambda weights: toy(lambda _, leaf: leaf, weights, samples().astype(compute)))(weights)


@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_stage_has_the_gradient_of_one_device(stage: int, axes: dict[str, int]) -> None:
    expected = plain()
    for name, gradient in gradients(stage, axes).items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-5 * np.abs(expected[name]).max())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_stay_whole_have_it_too(stage: int) -> None:
    mesh = make(data=4)
    assert [name for name, layout in layouts(mesh, stage, 6).items() if layout.zero_axes] == ["stack"]
    expected = plain()
    for name, gradient in gradients(stage, {"data": 4}, persist_below=6).items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-5 * np.abs(expected[name]).max())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bfloat16_is_as_close_as_on_one_device(stage: int) -> None:
    exact, alone = plain(), plain(jnp.bfloat16)
    for name, gradient in gradients(stage, {"data": 4}, jnp.bfloat16).items():
        size = np.abs(exact[name]).max()
        error, error_alone = (np.abs(np.asarray(g, np.float32) - exact[name]).max() for g in (gradient, alone[name]))
        assert error <= 2 * error_alone + 2**-8 * size


# For one leaf that is no layer's, over M micro-batches: how often each collective is written in the program.
M = 3
WIRE = {
    0: {("psum_invariant", "float32"): 1},
    1: {("all_gather", "bfloat16"): 1, ("reduce_scatter", "float32"): 1},
    2: {("all_gather", "bfloat16"): 1, ("reduce_scatter", "float32"): M},
    3: {("all_gather", "bfloat16"): M, ("reduce_scatter", "float32"): M},
}


@pytest.mark.parametrize("stage", WIRE)
def test_what_travels_when_and_in_which_dtype(stage: int) -> None:
    run, master = one_leaf(stage, data=4)
    assert Counter(collectives_of(run, master)) == WIRE[stage]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_replicas_add_up_once_after_the_micro_batches(stage: int) -> None:
    run, master = one_leaf(stage, data=2, replica=2)
    assert Counter(collectives_of(run, master)) == {**WIRE[stage], ("psum_invariant", "float32"): 1}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_on_one_device_nothing_travels(stage: int) -> None:
    run, master = one_leaf(stage, data=1)
    assert collectives_of(run, master) == []


@pytest.mark.parametrize("reduce", ["bfloat16", "float32"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_travel_in_the_dtype_that_was_asked_for(stage: int, reduce: str) -> None:
    run, master = one_leaf(stage, data=4, reduce=reduce)
    assert {dtype for kind, dtype in collectives_of(run, master) if kind == "reduce_scatter"} == {reduce}


def one_leaf(stage: int, *, reduce: str = "float32", **axes: int) -> tuple[Callable[..., jax.Array], jax.Array]:
    mesh = make(**axes)
    layout = plan((6,), ("embed",), dict(mesh.shape), zero_axes=ZERO_AXES if stage else ())
    zero = Zero(stage, jnp.bfloat16, jnp.dtype(reduce))

    def local(master: jax.Array) -> jax.Array:
        leaf, gathered = zero.before(master, layout)
        total = jnp.float32(0)
        for micro in range(M):
            place = collectives.varying(jnp.float32(micro), ("data", "replica"))
            total += jax.grad(lambda leaf, x=place: jnp.sum(zero.fetch(leaf, gathered, layout) * x))(leaf)
        return zero.after(total.astype(jnp.float32), layout)

    return manual(mesh, local, layout.spec, layout.spec), jnp.ones(layout.stored_shape)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bfloat16_gradients_of_many_devices_are_added_in_float32(stage: int) -> None:
    """256 + 7 x 1 is 263; each 1 is lost where the sum is kept in bfloat16."""
    mesh = make(data=8)
    layout = plan((8,), ("embed",), dict(mesh.shape), zero_axes=ZERO_AXES if stage else ())
    zero = Zero(stage, jnp.bfloat16, jnp.float32)

    def local(master: jax.Array) -> jax.Array:
        leaf, gathered = zero.before(master, layout)
        mine = jnp.where(collectives.axis_index("data") == 0, 256, 1).astype(jnp.bfloat16)
        gradient = jax.grad(lambda leaf: jnp.sum(zero.fetch(leaf, gathered, layout) * mine).astype(jnp.float32))(leaf)
        return zero.after(gradient, layout)

    np.testing.assert_array_equal(manual(mesh, local, layout.spec, layout.spec)(jnp.ones(8)), 263)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_weight_a_layer_uses_is_whole_and_without_padding(stage: int) -> None:
    mesh = make(data=2, context=3)
    layout = plan((7, 2), ("embed", "head_dim"), dict(mesh.shape), zero_axes=ZERO_AXES)
    weight = np.arange(14.0, dtype=np.float32).reshape(7, 2)
    at_rest = layout.store(jnp.asarray(weight))
    zero = Zero(stage, jnp.bfloat16, jnp.float32)

    def local() -> jax.Array:
        place = collectives.axis_index("data") * 3 + collectives.axis_index("context")
        dim = layout.zero_dim
        assert dim is not None
        size = layout.dims[dim].shard
        shard = jax.lax.dynamic_slice_in_dim(at_rest, place * size, size, axis=dim)
        return zero.fetch(*zero.before(shard, layout), layout)

    found = everywhere(mesh, local)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.reshape(6, 7, 2), np.broadcast_to(weight, (6, 7, 2)))
