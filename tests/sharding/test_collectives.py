"""The named collectives: silent on one device, and each the gradient of its partner."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from sharding import collectives
from sharding.mesh import AXES
from tests.sharding.regions import collectives_of, equations, everywhere, make, manual

EVERY: dict[str, Callable[[jax.Array], jax.Array]] = {
    "varying": lambda x: collectives.varying(x, AXES),
    "all_sum": lambda x: collectives.all_sum(x, AXES),
    "all_max": lambda x: collectives.all_max(x, AXES),
    "gather": lambda x: collectives.gather(x, AXES, 0),
    "scatter_sum": lambda x: collectives.scatter_sum(x, AXES, 0),
}
# On data 2 x tensor 2, x = [0, 1], [2, 3], ... on devices 0, 1, ...
RESULTS = {
    "all_sum": [[12, 16]] * 4,
    "all_max": [[6, 7]] * 4,
    "gather": [list(range(8))] * 4,
}


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_emitted_on_one_device(name: str) -> None:
    x = jnp.arange(4.0)
    inside = manual(make(), EVERY[name], P(), P())
    for function in (EVERY[name], inside):  # outside of a manual region, and on axes of size 1
        np.testing.assert_array_equal(function(x), x)
    assert collectives_of(inside, x) == []
    assert jax.make_jaxpr(EVERY[name])(x).eqns == []


def own_pair() -> jax.Array:
    place = 2 * collectives.axis_index("data") + collectives.axis_index("tensor")
    return jnp.arange(2.0) + 2 * place


@pytest.mark.parametrize("name", RESULTS)
def test_what_every_device_gets(name: str) -> None:
    found = everywhere(make(data=2, tensor=2), lambda: EVERY[name](own_pair()))
    np.testing.assert_array_equal(found.reshape(4, -1), RESULTS[name])


def test_a_reduce_scatter_leaves_each_device_its_block() -> None:
    found = everywhere(make(data=2, tensor=2), lambda: collectives.scatter_sum(jnp.repeat(own_pair(), 2), AXES, 0))
    np.testing.assert_array_equal(found.ravel(), [12, 12, 16, 16])


def test_axes_of_size_1_are_never_named() -> None:
    def all_of_them(x: jax.Array) -> jax.Array:
        whole = collectives.gather(x, AXES, 0)
        return collectives.all_sum(x, AXES) + collectives.all_max(collectives.scatter_sum(whole, AXES, 0), AXES)

    traced = jax.make_jaxpr(manual(make(data=2), all_of_them, P("data"), P()))(jnp.zeros(4))
    named = [e.params.get("axes", e.params.get("axis_name")) for e in equations(traced)]
    assert {axes for axes in named if axes is not None} == {("data",)}


@pytest.mark.parametrize(
    ("forward", "backward"), [("gather", "reduce_scatter"), ("scatter_sum", "all_gather")], ids=lambda name: name
)
def test_gather_and_scatter_are_each_others_gradient(forward: str, backward: str) -> None:
    mesh = make(tensor=4)
    rng = np.random.default_rng(0)
    size = {"gather": 2, "scatter_sum": 8}[forward]
    x, seed = rng.normal(size=(4 * size,)), rng.normal(size=(4 * {"gather": 8, "scatter_sum": 2}[forward],))

    def pull(x: jax.Array, seed: jax.Array) -> jax.Array:
        return jax.vjp(EVERY[forward], x)[1](seed)[0]

    run = manual(mesh, pull, (P("tensor"), P("tensor")), P("tensor"))
    found = run(jnp.asarray(x, jnp.float32), jnp.asarray(seed, jnp.float32))
    blocks = seed.reshape(4, -1)
    expected = blocks.sum(0) if forward == "gather" else np.tile(seed, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert collectives_of(run, x.astype(np.float32), seed.astype(np.float32))[-1][0] == backward


def test_a_replicated_value_cast_to_varying_keeps_its_gradient_on_each_device() -> None:
    def gradient(w: jax.Array) -> jax.Array:
        w = collectives.varying(w, AXES)
        return jax.grad(lambda w: jnp.sum(w * own_pair()))(w)

    mesh = make(data=2, tensor=2)
    found = manual(mesh, gradient, P(), P(("data", "tensor")))(jnp.ones(2))
    np.testing.assert_array_equal(found, np.arange(8.0))
    assert collectives_of(manual(mesh, gradient, P(), P(("data", "tensor"))), jnp.ones(2)) == []


@pytest.mark.parametrize("name", ["all_sum", "scatter_sum"])
def test_to_sum_what_does_not_vary_is_an_error_not_a_wrong_number(name: str) -> None:
    run = manual(make(data=2, tensor=2), EVERY[name], P("tensor"), P("tensor"))
    with pytest.raises(AssertionError, match="count a value 2 times"):
        run(jnp.ones(8))
