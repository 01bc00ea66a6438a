"""Checkpoints in orbax's format: any JAX program reads what is exported, and those of older versions are read."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from trainer.checkpoint import Checkpoints, orbax
from trainer.checkpoint.blocks import BLOCK
from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.foreign import is_of_format_1
from trainer.checkpoint.index import from_plain, to_plain
from trainer.checkpoint.read import ArrayReader
from trainer.checkpoint.write import ArrayWriter, Snapshot
from trainer.errors import ConfigError

ARRAYS = {
    "step": np.int32(7),
    "parameters.up": np.arange(60, dtype=np.float32).reshape(12, 5),
    "parameters.half": np.arange(6).astype(jnp.bfloat16),
}


def written(folder: Path) -> ArrayReader:
    """The arrays in files of our own."""
    writer = ArrayWriter(folder / "0.bin", 0)
    writer.write(Snapshot({name: jnp.array(array) for name, array in ARRAYS.items()}))
    return ArrayReader(folder, from_plain([to_plain(writer.finish())]))


def test_any_jax_program_reads_what_is_exported(tmp_path: Path) -> None:
    with written(tmp_path) as reader:
        orbax.export(reader, tmp_path / "exported")
    found = ocp.PyTreeCheckpointer().restore(tmp_path / "exported")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_what_is_damaged_is_not_exported(tmp_path: Path) -> None:
    with written(tmp_path) as reader:
        (tmp_path / "0.bin").write_bytes(bytes(BLOCK))
        with pytest.raises(Damaged, match="checksum"):
            orbax.export(reader, tmp_path / "exported")
    assert not list(tmp_path.glob("exported*"))


def test_an_older_version_s_checkpoint_is_read_onto_any_mesh(tmp_path: Path) -> None:
    parts = {
        "arrays": ocp.args.PyTreeSave({name: jnp.array(array) for name, array in ARRAYS.items()}),
        "meta": ocp.args.JsonSave({"tokens": 5}),
    }
    ocp.Checkpointer(ocp.CompositeCheckpointHandler()).save(tmp_path / "3", ocp.args.Composite(**parts))
    assert is_of_format_1(tmp_path / "3")
    assert orbax.meta(tmp_path / "3") == {"tokens": 5}
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    wanted = {
        "parameters.up": jax.ShapeDtypeStruct((12, 5), np.dtype(np.float32), sharding=rows),
        "step": jax.ShapeDtypeStruct((), np.dtype(np.int32), sharding=whole),
    }
    with orbax.OrbaxReader(tmp_path / "3") as reader:
        assert {name: x.shape for name, x in reader.index.items()} == {name: x.shape for name, x in ARRAYS.items()}
        placed = dict(reader.place(wanted))
    assert placed["parameters.up"].sharding == rows
    for name, array in placed.items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_an_older_version_s_checkpoint_that_is_damaged_is_called_so(tmp_path: Path) -> None:
    for name in ("arrays/manifest.ocdbt", "meta/metadata"):
        (tmp_path / "3" / name).parent.mkdir(parents=True)
        (tmp_path / "3" / name).write_bytes(b"cos\nsystem\n")
    checkpoints = Checkpoints(tmp_path, keep=1)
    with pytest.raises(ConfigError, match=r"3 is damaged: orbax says.*start anew"):
        checkpoints.meta(3)
    with pytest.raises(ConfigError, match=r"3 is damaged: orbax says.*start anew"):
        checkpoints.restore(3, {})
