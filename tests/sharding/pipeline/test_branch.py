"""Work that only some stages do: done where the condition holds, and known by its name in the traced program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from sharding import collectives
from sharding.pipeline.branch import branch
from sharding.pipeline.executor import AXIS
from tests.sharding.regions import equations, make, manual

ON_STAGES = PartitionSpec(AXIS)


def doubled_on_odd_stages(x: jax.Array) -> jax.Array:
    """[1] of each stage: the sum over `data` there, and nothing elsewhere."""
    odd = jax.lax.axis_index(AXIS) % 2 == 1

    def work(x: jax.Array) -> jax.Array:
        return collectives.varying(collectives.all_sum(x, ["data"]), ["data"])

    x = collectives.varying(x, ["data"])
    return collectives.all_max(branch("odd", odd, work, jnp.zeros_like, x), ["data"])


def test_stages_differ_in_what_they_do_and_may_exchange_within() -> None:
    region = manual(make(pipeline=4, data=2), doubled_on_odd_stages, ON_STAGES, ON_STAGES)
    np.testing.assert_array_equal(region(jnp.arange(1.0, 5.0)), [0, 4, 0, 8])


def test_gradients_go_through_the_branch_that_was_taken() -> None:
    def local(x: jax.Array) -> jax.Array:
        odd = jax.lax.axis_index(AXIS) % 2 == 1
        return jax.grad(lambda x: branch("odd", odd, lambda x: 3 * x, lambda x: -x, x).sum())(x)

    region = manual(make(pipeline=4), local, ON_STAGES, ON_STAGES)
    np.testing.assert_array_equal(region(jnp.ones(4)), [-1, 3, -1, 3])


def test_a_branch_is_known_by_its_name() -> None:
    region = manual(make(pipeline=2, data=2), doubled_on_odd_stages, ON_STAGES, ON_STAGES)
    (choice,) = [e for e in equations(jax.make_jaxpr(region)(jnp.ones(2))) if e.primitive.name == "cond"]
    names = [[e.params.get("name") for e in way.jaxpr.eqns] for way in choice.params["branches"]]
    assert ["odd" in programs for programs in names] == [False, True]
