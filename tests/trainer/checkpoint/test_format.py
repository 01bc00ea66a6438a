"""The files are what docs/checkpoints.md says: NumPy alone reads them, as its lines of Python do."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from trainer.checkpoint import Checkpoints, blocks

ROOT = Path(__file__).parents[3]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("blocks", "read"):
        monkeypatch.setattr(f"trainer.checkpoint.{module}.BLOCK", 4096)


def arrays() -> dict[str, jax.Array]:
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    cut = NamedSharding(mesh, PartitionSpec("a", "b"))
    random = np.random.default_rng(0)
    return {
        "parameters.weight": jax.device_put(random.normal(size=(64, 130)).astype(np.float32), cut),
        "optimizer.mu": jax.device_put(random.normal(size=(6, 4)).astype(jnp.bfloat16), cut),
        "step": jnp.int32(7),
        "nothing": jnp.zeros((0, 3)),
        "mask": jnp.arange(9001) % 3 == 0,
    }


def test_numpy_alone_reads_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(7, arrays(), {})
    checkpoints.close()
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text(), re.S)
    names: dict[str, object] = {}
    exec(code, names)
    found = names["read"](str(tmp_path / "7"))  # type: ignore[operator]
    expected = arrays()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("spec", [(), ("a",), (None, "b"), (("a", "b"),), ("b", "a")])
def test_pieces_of_many_blocks_are_read_onto_any_sharding(spec: tuple[object, ...], tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(7, arrays(), {})
    checkpoints.close()
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    weight = arrays()["parameters.weight"]
    whole = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays().items()}
    wanted = NamedSharding(mesh, PartitionSpec(*spec))
    whole["parameters.weight"] = jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=wanted)
    found = checkpoints.restore(7, whole)
    for name, array in arrays().items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)
    half = checkpoints.restore(7, whole, ["parameters.weight"], np.dtype(jnp.bfloat16))["parameters.weight"]
    np.testing.assert_array_equal(half, weight.astype(jnp.bfloat16), strict=True)


def test_any_dtype_fits_into_blocks() -> None:
    assert all(blocks.BLOCK % jnp.dtype(dtype).itemsize == 0 for dtype in ("bool", "bfloat16", "float32", "complex128"))
