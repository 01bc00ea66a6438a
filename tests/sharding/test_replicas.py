"""What should be the same on several devices, and is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from sharding.mesh import AXES
from sharding.replicas import axes_of_replicas, compare, fingerprint
from tests.sharding.regions import COLLECTIVES, equations, make, manual

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint32", "uint8", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bit_of_any_element_is_in_the_fingerprint(dtype: str) -> None:
    size = 37
    zeros = np.zeros(size, dtype)
    bits = 1 if dtype == "bool" else 8 * zeros.itemsize
    flipped = np.stack([zeros] * (1 + size * bits))
    whole = flipped.view(bool if dtype == "bool" else f"uint{bits}")
    for place in range(size):
        for bit in range(bits):
            whole[1 + place * bits + bit, place] ^= 1 << bit
    prints = np.asarray(jax.vmap(fingerprint)(jnp.asarray(flipped)))
    assert len(np.unique(prints)) == len(prints)


def test_a_fingerprint_tells_elements_that_have_changed_places() -> None:
    x = jnp.arange(8.0)
    assert fingerprint(x) != fingerprint(x[::-1])


def test_nan_is_itself() -> None:
    assert fingerprint(jnp.array([jnp.nan])) == fingerprint(jnp.array([jnp.nan]))


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (P(), ("data", "tensor")),
        (P(None, "tensor"), ("data",)),
        (P(("data", "tensor")), ()),
        (P("pipeline"), ("data", "tensor")),
    ],
)
def test_an_array_has_replicas_along_the_axes_that_do_not_cut_it(spec: P, axes: tuple[str, ...]) -> None:
    assert axes_of_replicas(spec, dict.fromkeys(AXES, 1) | {"data": 2, "tensor": 2}) == axes


def test_it_says_along_which_axis_and_sends_a_few_bytes() -> None:
    mesh = make(data=2, tensor=2)
    arrays = {"cut": P("data"), "tensor": P(None, "tensor"), "whole": P()}
    axes = [axes_of_replicas(spec, mesh.shape) for spec in arrays.values()]

    def broken(*blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Device (1, 0) holds something else of the second."""
        is_there = (jax.lax.axis_index("data") == 1) & (jax.lax.axis_index("tensor") == 0)
        return compare([blocks[0], blocks[1] + is_there, blocks[2]], axes)

    inside = manual(mesh, broken, tuple(arrays.values()), (P(), P(("data", "tensor"))))
    x = jnp.ones((4, 4))
    differ, prints = inside(x, x, x)
    assert [(AXES[axis], list(arrays)[array]) for axis, array in np.argwhere(differ)] == [("data", "tensor")]
    assert prints.shape == (4, 3)
    program = jax.make_jaxpr(inside)(x, x, x)
    sent = [equation.invars[0].aval for equation in equations(program) if equation.primitive.name in COLLECTIVES]
    assert [aval.size for aval in sent] == [6, 6, 6 * 3]  # largest and smallest along two axes, then the answer
