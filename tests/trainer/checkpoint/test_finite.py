"""No checkpoint is made of numbers that are not finite, wherever they are kept; the older ones stay."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from trainer.checkpoint import Checkpoints, Later
from trainer.checkpoint.finite import is_finite, look
from trainer.errors import TrainingError


def cut(array: np.ndarray) -> jax.Array:
    """Over eight devices."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec("data")))


def later(array: jax.Array) -> Later:
    return Later(jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding), array.copy)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("keep", [cut, lambda array: later(cut(array))], ids=["now", "later"])
def test_it_is_refused_and_named(tmp_path: Path, dtype: type, bad: float, keep: object) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    numbers = np.ones((8, 3), dtype)
    good = {"count": cut(np.full(8, 2**31 - 1, np.int32)), "weight": keep(numbers)}  # type: ignore[operator]
    checkpoints.save(1, good, {})
    numbers[5, 1] = bad
    with pytest.raises(TrainingError, match=r"step 2 is not saved: weight hold.*newest checkpoint is that of step 1"):
        checkpoints.save(2, {"count": cut(np.zeros(8, np.int32)), "weight": keep(numbers)}, {})  # type: ignore[operator]
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    checkpoints.save(3, {"weight": cut(np.ones(8, dtype))}, {})
    checkpoints.wait()
    assert checkpoints.steps() == [1, 3]


def test_devices_look_at_what_is_theirs() -> None:
    """What accelerators do; CPUs are looked at from the host."""
    numbers, bad = np.ones((8, 1000), np.float32), np.full((8, 1000), 3e38, np.float32)
    bad[7, 999] = np.inf
    arrays = [cut(numbers), cut(bad)]
    np.testing.assert_array_equal(jax.jit(look)(arrays), [True, False])


@pytest.mark.parametrize("size", [0, 1, 2**18, 2**18 + 1])
def test_every_block_is_looked_at(size: int) -> None:
    numbers = np.ones(size, np.float32)
    assert is_finite(numbers)
    if size:
        numbers[-1] = np.nan
        assert not is_finite(numbers)
