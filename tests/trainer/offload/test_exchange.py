"""What comes down of a bucket is what the devices hold, and what goes up is in its place on each of them.

`sees_all=False` is how devices are met whose memory is not the host's: by programs that cut a bucket out and put it in.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from sharding.layout import Dim, Layout
from sharding.mesh import MeshConfig, make_mesh
from trainer.offload.buckets import Bucket, cut
from trainer.offload.exchange import HOST, Exchange

TENSOR: dict[str, Any] = {"model_axes": ("tensor",), "model_shards": 2}
ZERO: dict[str, Any] = {"zero_axes": ("data",), "zero_shards": 2}
LAYOUTS = {
    "replicated": Layout((Dim(3), Dim(4))),
    "vector": Layout((Dim(5),)),
    "padded by ZeRO": Layout((Dim(5, **ZERO), Dim(4))),
    "cut over tensor": Layout((Dim(3), Dim(10, **TENSOR))),
    "one dim cut twice": Layout((Dim(2), Dim(9, **TENSOR, **ZERO))),
    "two dims cut": Layout((Dim(2), Dim(6, **TENSOR), Dim(3, **ZERO)), stacked=True),
    "stages in another order": Layout((Dim(3, order=(2, 0, -1, 1)), Dim(4, **TENSOR)), stacked=True),
}
MOST = [1000, 8, 3]  # everything whole; several rows, or one; some columns of a row


@cache
def mesh() -> Mesh:
    return make_mesh(MeshConfig(replica=2, data=2, tensor=2), jax.devices())


@pytest.fixture(scope="module", params=[True, False], ids=["sees_all", "programs"])
def exchange(request: pytest.FixtureRequest) -> Exchange:
    return Exchange(mesh(), LAYOUTS, request.param)


def numbers(name: str) -> np.ndarray:
    """As stored: no two alike, and all exact in bfloat16."""
    shape = LAYOUTS[name].stored_shape
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def put(exchange: Exchange, name: str, array: np.ndarray) -> jax.Array:
    return jax.device_put(array, exchange.shardings[name])


def buckets(name: str, most: int) -> list[Bucket]:
    return list(cut({name: LAYOUTS[name].shard_shape}, most))


def expected_shards(name: str) -> list[np.ndarray]:
    """Every different shard, flat: in the order in which the devices hold them."""
    places = NamedSharding(mesh(), LAYOUTS[name].spec).devices_indices_map(LAYOUTS[name].stored_shape)
    found = {str(index): numbers(name)[index].reshape(-1) for index in places.values()}
    return list(found.values())


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("name", LAYOUTS)
def test_buckets_come_down(exchange: Exchange, name: str, most: int) -> None:
    array = put(exchange, name, numbers(name))
    parts = [exchange.down(array, bucket) for bucket in buckets(name, most)]
    found = [np.concatenate(of_group) for of_group in zip(*parts, strict=True)]
    np.testing.assert_array_equal(found, expected_shards(name))
    assert len(found) == len(exchange.groups[name])


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("name", LAYOUTS)
def test_buckets_go_up_to_every_device(exchange: Exchange, name: str, most: int) -> None:
    array = put(exchange, name, np.full(LAYOUTS[name].stored_shape, -1, jnp.bfloat16))
    for bucket in buckets(name, most):
        parts = [shard[bucket.start :][: bucket.size].astype(jnp.bfloat16) for shard in expected_shards(name)]
        array = exchange.up(array, bucket, parts)
    assert array.sharding == exchange.shardings[name]
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data, np.float32), numbers(name)[shard.index])


def test_the_rest_stays_as_it_was(exchange: Exchange) -> None:
    name = "one dim cut twice"
    one = buckets(name, 2)[1]
    assert (one.columns, one.width) == (1, 3), "a part of a row"
    before = numbers(name)
    array = exchange.up(put(exchange, name, before), one, [np.full(1, -1, np.float32)] * len(exchange.groups[name]))
    changed = np.argwhere(np.asarray(array) != before)
    np.testing.assert_array_equal(changed, [[0, 2], [0, 5], [0, 8], [0, 11]], "one column of each of four shards")


def test_the_old_weights_are_used_up(exchange: Exchange) -> None:
    """So that the devices never hold them twice."""
    for most in MOST:
        array, bucket = put(exchange, "replicated", numbers("replicated")), buckets("replicated", most)[0]
        exchange.up(array, bucket, [np.zeros(bucket.size, np.float32)])
        assert array.is_deleted()


@pytest.mark.parametrize("name", LAYOUTS)
def test_shards_on_the_host_are_an_array_there(exchange: Exchange, name: str) -> None:
    shards = [shard.copy() for shard in expected_shards(name)]
    array = exchange.on_host(name, shards)
    assert array.sharding.memory_kind == HOST
    for shard in shards:
        shard[:] = -1
    np.testing.assert_array_equal(np.asarray(array), numbers(name), "it is a copy")
    np.testing.assert_array_equal(exchange.shards(name, array), expected_shards(name))


def test_what_is_on_the_host_is_not_copied_again(exchange: Exchange) -> None:
    name = "padded by ZeRO"
    array = exchange.on_host(name, expected_shards(name))
    memory = [np.asarray(shard.data) for shard in array.addressable_shards]
    for bucket in buckets(name, 8):
        for part in exchange.down(array, bucket):
            assert any(np.shares_memory(part, whole) for whole in memory)


def test_a_bucket_of_the_devices_own_memory_is_not_copied_either() -> None:
    name = "padded by ZeRO"
    exchange = Exchange(mesh(), LAYOUTS, sees_all=True)
    array = put(exchange, name, numbers(name))
    (part, _) = exchange.down(array, buckets(name, 8)[1])
    assert any(np.shares_memory(part, np.asarray(shard.data)) for shard in array.addressable_shards)
