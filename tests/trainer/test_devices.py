"""Which devices a run takes, and how rows of host memory come to lie on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from models.inputs import Batch
from sharding.mesh import MeshConfig, make_mesh
from trainer.devices import find_devices, put_batch, use_compile_cache
from trainer.errors import ConfigError

ROOT = Path(__file__).parents[2]
SIZE = 8


def test_all_devices_unless_virtual_ones_are_asked_for() -> None:
    assert find_devices(MeshConfig(data=-1)) == jax.devices()


def test_virtual_devices_are_some_of_those_there_are() -> None:
    assert find_devices(MeshConfig(data=2, tensor=2, virtual_devices=4)) == jax.devices("cpu")[:4]
    with pytest.raises(ConfigError, match=r"virtual_devices=16, but JAX has already started with 8 on the CPU; .*16"):
        find_devices(MeshConfig(data=-1, virtual_devices=16))


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        # A platform that is not there does not matter to virtual devices.
        ("print(len(find_devices(MeshConfig(data=-1, virtual_devices=3))))", "3"),
        ("find_devices(MeshConfig(data=-1))", "JAX finds no devices (Unable to initialize backend 'absent'"),
    ],
    ids=["virtual", "real"],
)
def test_before_jax_has_started(code: str, printed: str) -> None:
    script = f"""if True:
        from sharding.mesh import MeshConfig
        from trainer.devices import find_devices
        from trainer.errors import ConfigError
        try:
            {code}
        except ConfigError as error:
            print(error)
    """
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "absent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.startswith(printed), result.stderr


@pytest.mark.parametrize(
    ("config", "axes"),
    [
        (MeshConfig(data=4, tensor=2), ("data",)),
        (MeshConfig(replica=2, data=4), ("replica", "data")),
        (MeshConfig(tensor=8), None),
    ],
    ids=["data and tensor", "replica and data", "tensor alone"],
)
def test_rows_lie_where_their_devices_are(config: MeshConfig, axes: tuple[str, ...] | None) -> None:
    mesh = make_mesh(config, jax.devices())
    asks: list[tuple[int, int]] = []

    def rows(low: int, high: int) -> dict[str, np.ndarray]:
        asks.append((low, high))
        place = np.arange(low, high)
        return {name: place if name == "samples" else place[:, None] * [1, 10] for name in Batch._fields}

    spec = PartitionSpec(axes)
    batch = put_batch(mesh, Batch(*[spec] * len(Batch._fields)), SIZE, rows)  # type: ignore[arg-type]
    assert asks == [(0, SIZE)]  # once, all that this process' devices hold
    assert batch.tokens.sharding.spec == spec
    np.testing.assert_array_equal(batch.tokens, np.arange(SIZE)[:, None] * [1, 10])
    np.testing.assert_array_equal(batch.samples, np.arange(SIZE))
    for shard in batch.samples.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.arange(SIZE)[shard.index])


def test_the_environments_compile_cache_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = jax.config.jax_compilation_cache_dir
    try:
        use_compile_cache(str(tmp_path))
        use_compile_cache(None)
        assert jax.config.jax_compilation_cache_dir == before
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        use_compile_cache("~/xla")
        assert jax.config.jax_compilation_cache_dir == os.path.expanduser("~/xla")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
