"""Dropout in the model: the same on every mesh and in recompute, different everywhere else, and off without a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from models import decoder, layers
from models.decoder import Decoder
from models.inputs import Batch, Inputs
from models.layers import drop
from models.recompute import RecomputePolicy, block_policy
from sharding import collectives
from sharding.layout import plan
from sharding.mesh import AXES
from tests.models.families import FAMILIES, batch_of, weights_of, whole
from tests.sharding.regions import make, manual

CONFIG = dataclasses.replace(FAMILIES["gpt2"], dropout=0.4, heads=6, layers=3)
TOKENS = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8], [9, 7, 9, 3, 2, 3], [8, 4, 6, 2, 6, 4]], np.int32)
KEY = 5


def loss_of(
    key: int | None = KEY, policy: RecomputePolicy = "none"
) -> Callable[[dict[str, jax.Array], Batch], jax.Array]:
    keep = block_policy(policy, None)

    def loss(weights: dict[str, jax.Array], batch: Batch) -> jax.Array:
        return Decoder(CONFIG).loss(weights, whole, batch, None if key is None else jax.random.key(key), keep)

    return jax.jit(loss)


@pytest.mark.parametrize("axes", [{"tensor": 3}, {"data": 2, "tensor": 2}], ids=str)
def test_every_mesh_drops_the_same(axes: dict[str, int]) -> None:
    mesh = make(**axes)
    weights = weights_of(CONFIG)
    declarations = Decoder(CONFIG).declarations
    layouts = {name: plan(d.shape, d.axes, dict(mesh.shape)) for name, d in declarations.items()}

    def local(weights: dict[str, jax.Array], batch: Batch) -> jax.Array:
        leaves = {name: collectives.varying(weight, AXES) for name, weight in weights.items()}
        loss = Decoder(CONFIG).loss(leaves, whole, batch, jax.random.key(KEY), None)
        return collectives.all_sum(loss, ["data"])

    specs = {name: layout.spec for name, layout in layouts.items()}
    run = manual(mesh, local, (specs, Batch(*[P("data")] * 6)), P())
    found = run({name: layouts[name].store(jnp.asarray(x)) for name, x in weights.items()}, batch_of(TOKENS))
    np.testing.assert_allclose(found, loss_of()(weights, batch_of(TOKENS)), rtol=1e-5)


@pytest.mark.parametrize("policy", ["selective", "full"])
def test_recomputed_activations_drop_the_same(policy: RecomputePolicy) -> None:
    weights, batch = weights_of(CONFIG), batch_of(TOKENS)
    kept, recomputed = (jax.jit(jax.grad(loss_of(policy=p)))(weights, batch) for p in ("none", policy))
    largest = max(float(np.abs(gradient).max()) for gradient in kept.values())
    for name, gradient in kept.items():
        np.testing.assert_allclose(recomputed[name], gradient, rtol=1e-4, atol=1e-6 * largest, err_msg=name)


def test_it_goes_by_the_sample_not_by_its_row() -> None:
    weights, batch = weights_of(CONFIG), batch_of(TOKENS)
    turned = jax.tree.map(lambda x: x[::-1], batch)
    np.testing.assert_allclose(loss_of()(weights, turned), loss_of()(weights, batch), rtol=1e-6)
    renumbered = batch._replace(samples=batch.samples + 4)
    assert abs(loss_of()(weights, renumbered) - loss_of()(weights, batch)) > 1e-3


def test_without_a_key_nothing_is_dropped() -> None:
    weights, batch = weights_of(CONFIG), batch_of(TOKENS)
    none = dataclasses.replace(CONFIG, dropout=0.0)
    plain = Decoder(none).loss(weights, whole, batch, jax.random.key(KEY), None)
    np.testing.assert_allclose(loss_of(key=None)(weights, batch), plain, rtol=1e-6)
    assert abs(loss_of()(weights, batch) - plain) > 1e-3


def test_every_place_in_the_model_has_its_own_mask_and_the_mean_stays() -> None:
    inputs = Inputs(split=True, positions=jnp.zeros((8, 64)), dropout_key=jax.random.key(0), samples=jnp.arange(8))
    ones = jnp.ones((8, 64, 32))
    dropped = np.stack([drop(ones, inputs, 0.25, place) for place in range(3)])
    np.testing.assert_allclose(np.unique(dropped), [0, 4 / 3], rtol=1e-6)
    assert abs(dropped.mean() - 1) < 0.01
    masks = (dropped > 0).reshape(3, -1)
    assert np.abs(np.corrcoef(masks)[np.triu_indices(3, 1)]).max() < 0.05


def test_no_two_places_in_the_model_share_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []

    def spy(x: jax.Array, inputs: Inputs, rate: float, place: int) -> jax.Array:
        places.append(place)
        return x

    for module in (decoder, layers):
        monkeypatch.setattr(module, "drop", spy)
    unrolled = Decoder(dataclasses.replace(CONFIG, scan_layers=False))
    unrolled.loss(weights_of(CONFIG), whole, batch_of(TOKENS), jax.random.key(KEY), None)
    assert places == list(range(1 + 2 * CONFIG.layers))
