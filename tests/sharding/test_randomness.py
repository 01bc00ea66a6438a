"""Random numbers are a function of what they are for: the same on every mesh, made in shards, and really random."""

from __future__ import annotations

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from sharding import randomness
from sharding.layout import Layout, plan
from tests.sharding.regions import equations, everywhere, make, manual

LEAVES = {
    # Sizes that divide by nothing, so that every mesh pads them.
    "matrix": ((3, 11, 7), ("layers", "embed", "ffn")),
    "table": ((13, 5), ("vocab", "embed")),
    "heads": ((3, 7, 3, 2), ("layers", "embed", "kv_heads", "head_dim")),
    "vector": ((9,), ("embed",)),
}
MESHES = [
    {"data": 8},
    {"data": 3, "tensor": 2},
    {"tensor": 4},
    {"replica": 2, "data": 2, "tensor": 2},
    {"context": 5},
    {"pipeline": 2, "data": 2, "tensor": 2},
    {"pipeline": 4, "data": 2},
]
LAYER_ORDER = (1, -1, 0, 2)
"""Of the three layers on pipeline stages."""


def layouts(mesh: Mesh, zero_axes: tuple[str, ...]) -> dict[str, Layout]:
    sizes = dict(mesh.shape)
    order = LAYER_ORDER if sizes["pipeline"] > 1 else ()
    return {
        leaf: plan(shape, axes, sizes, layer_order=order, zero_axes=zero_axes) for leaf, (shape, axes) in LEAVES.items()
    }


def stored(mesh: Mesh, layouts: dict[str, Layout]) -> dict[str, jax.Array]:
    """All leaves, as the devices make them."""
    specs = {leaf: layout.spec for leaf, layout in layouts.items()}
    seed = jnp.uint32(0)
    return manual(mesh, lambda: {leaf: randomness.normal(leaf, x, seed) for leaf, x in layouts.items()}, (), specs)()


@cache
def single(shape: tuple[int, ...], axes: tuple[str, ...], *, name: str = "leaf", seed: int = 0) -> np.ndarray:
    """Values as one device makes them."""
    layout = plan(shape, axes, {"tensor": 1})
    return np.asarray(jax.jit(lambda: randomness.normal(name, layout, jnp.uint32(seed)))())


@pytest.mark.parametrize("zero_axes", [("data", "context"), ()], ids=["zero", "whole"])
@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_every_mesh_makes_the_same_values_bit_for_bit(axes: dict[str, int], zero_axes: tuple[str, ...]) -> None:
    mesh = make(**axes)
    laid_out = layouts(mesh, zero_axes)
    for leaf, values in stored(mesh, laid_out).items():
        alone = single(*LEAVES[leaf], name=leaf)
        np.testing.assert_array_equal(laid_out[leaf].logical(values), alone)
        # Padding is exactly 0: it would count in norms otherwise.
        np.testing.assert_array_equal(laid_out[leaf].store(jnp.asarray(alone)), values)


def test_values_are_standard_normal() -> None:
    x = single((4, 500, 500), ("layers", "embed", "ffn"))
    n = x.size
    assert abs(x.mean()) < 4 / math.sqrt(n)
    assert abs(x.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((x**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / n)
    for bound, share in [(-2.0, 0.0227501), (-1.0, 0.1586553), (0.0, 0.5), (1.0, 0.8413447), (2.0, 0.9772499)]:
        assert abs((x < bound).mean() - share) < 4 * math.sqrt(share * (1 - share) / n)


def test_neighbours_are_independent() -> None:
    x = single((4, 400, 400), ("layers", "embed", "ffn")).astype(np.float64)
    for dim in range(3):
        low, high = (np.take(x, range(start, x.shape[dim] - 1 + start), axis=dim) for start in (0, 1))
        assert abs((low * high).mean()) < 4 / math.sqrt(low.size)


def test_no_leaf_layer_row_or_seed_repeats_another() -> None:
    shape, axes = (3, 40, 40), ("layers", "embed", "ffn")
    arrays = [single(shape, axes, name=name, seed=seed) for name in ("a", "b") for seed in (0, 1, 2**32 - 1)]
    # Half of all fall on 2**23 values, a quarter on as many: of 28,800 drawn, some 17 pairs are equal by chance; a
    # repeated row would add 40.
    values = np.stack(arrays).ravel()
    assert values.size - np.unique(values).size < 40
    rows = np.stack(arrays).reshape(-1, 40)
    assert len(np.unique(rows, axis=0)) == len(rows)
    correlation = np.corrcoef(np.stack(arrays).reshape(18, -1))[np.triu_indices(18, 1)]
    assert np.abs(correlation).max() < 5 / math.sqrt(1600)


def test_extreme_bits_stay_finite() -> None:
    edges = jnp.array([0, 2**31 - 1, 2**31, 2**32 - 1], jnp.uint32)
    values = np.asarray(randomness._bits_to_normal(edges))
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values, -values[::-1], rtol=1e-6)
    assert 6 < values[-1] < 7
    assert 0 < values[2] < 1e-6


def test_layers_with_more_entries_than_the_counter_are_refused() -> None:
    layout = plan((2**17, 2**16), ("vocab", "embed"), {"tensor": 1})
    with pytest.raises(AssertionError, match="more entries than the counter"):
        jax.eval_shape(lambda: randomness.normal("x", layout, jnp.uint32(0)))


@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 2, "tensor": 4}])
def test_no_device_ever_holds_more_than_a_few_shards(axes: dict[str, int]) -> None:
    mesh = make(**axes)
    shape, names = (4, 64, 96), ("layers", "embed", "ffn")
    layout = plan(shape, names, dict(mesh.shape), zero_axes=("data",))
    function = manual(mesh, lambda: randomness.normal("w", layout, jnp.uint32(0)), (), layout.spec)
    (region,) = [e for e in equations(jax.make_jaxpr(function)()) if e.primitive.name == "shard_map"]
    shard = math.prod(layout.shard_shape)
    assert shard * 8 == math.prod(shape)
    inside = [v.aval.size for e in equations(region.params["jaxpr"]) for v in e.outvars]
    assert max(inside) <= 2 * shard, "the counter has two halves"
    memory = function.lower().compile().memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < 4 * math.prod(shape)


def keep(key: int, samples: list[int], positions: list[int], features: int = 64, rate: float = 0.5) -> np.ndarray:
    mask = randomness.keep_mask(
        jax.random.key(key), jnp.array(samples, jnp.uint32), jnp.array(positions), features, rate
    )
    return np.asarray(mask)


def test_dropout_depends_on_sample_and_position_not_on_their_place() -> None:
    whole = keep(0, [7, 2**32 - 1, 9], [0, 1, 2, 3])
    np.testing.assert_array_equal(keep(0, [9, 7], [2, 3]), whole[[2, 0], 2:])


def test_dropout_differs_between_keys_samples_positions_and_features() -> None:
    mask = np.stack([keep(key, list(range(8)), list(range(8))) for key in (0, 1)]).reshape(-1, 64)
    assert len(np.unique(mask, axis=0)) == len(mask)
    assert len(np.unique(mask, axis=1).T) == 64


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999])
def test_dropout_drops_its_share(rate: float) -> None:
    kept = keep(3, list(range(16)), list(range(16)), 256, rate)
    n = kept.size
    assert abs(kept.mean() - (1 - rate)) <= 4 * math.sqrt(rate * (1 - rate) / n)


@pytest.mark.parametrize(
    ("axes", "shape", "names", "order"),
    [
        ({"data": 3, "tensor": 2}, (5, 4), ("vocab", "embed"), ()),
        ({"pipeline": 2, "data": 3}, (3, 4), ("layers", "embed"), LAYER_ORDER),
    ],
)
def test_the_mask_marks_what_is_no_padding(
    axes: dict[str, int], shape: tuple[int, ...], names: tuple[str, ...], order: tuple[int, ...]
) -> None:
    mesh = make(**axes)
    layout = plan(shape, names, dict(mesh.shape), layer_order=order, zero_axes=("data",))
    masks = everywhere(mesh, lambda: randomness.mask(layout))
    assert masks.reshape(6, *layout.shard_shape).sum() == math.prod(shape)
