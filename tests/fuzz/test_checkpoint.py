"""Whatever a checkpoint holds, even under a checksum that is right, it is loaded or refused in clear words."""

from __future__ import annotations

import functools
import json
import pickle
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st

from tests.fuzz import damage
from tests.fuzz.harness import fuzzed, only_clear_errors
from tests.fuzz.test_hostile_files import Command
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.header import HEADER
from trainer.checkpoint.sealed import read_sealed, write_sealed
from trainer.errors import ConfigError

INDEX = "0.json"


def arrays() -> dict[str, jax.Array]:
    return {"weight": jnp.arange(5000, dtype=jnp.float32).reshape(50, 100), "step": jnp.int32(3)}


@functools.cache
def abstract() -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays().items()}


@functools.cache
def intact() -> dict[str, bytes]:
    """Name -> the content of each file of a checkpoint of step 1."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(folder, keep=1)
        checkpoints.save(1, arrays(), {"tokens": 5, "data_hash": "a"}, {"loss": 2.5})
        checkpoints.close()
        return {path.name: path.read_bytes() for path in Path(folder, "1").iterdir()}


def load(folder: Path) -> None:
    """All that a trainer reads of it."""
    checkpoints = Checkpoints(folder, keep=1)
    newest = checkpoints.newest()
    if newest is not None:
        checkpoints.restore(newest, abstract())
        checkpoints.meta(newest)


def write(folder: Path, **contents: bytes) -> Path:
    for name, content in (intact() | contents).items():
        path = folder / "1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def _json(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return json.dumps(read_sealed(write(Path(folder)) / "1" / name))


DESCRIPTIONS = st.sampled_from([HEADER, INDEX]).flatmap(
    lambda name: st.tuples(st.just(name), damage.json_of(_json(name)))
)


@fuzzed(st.deferred(lambda: DESCRIPTIONS))
def test_any_description(description: tuple[str, str]) -> None:
    name, text = description
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder)) / "1" / name
        path.unlink()
        write_sealed(path, json.loads(text))
        with only_clear_errors():
            load(Path(folder))


@fuzzed(
    st.sampled_from([HEADER, INDEX, "0.bin"]).flatmap(
        lambda name: st.tuples(st.just(name), st.deferred(lambda: damage.bytes_of(intact()[name])))
    )
)
def test_any_bytes(change: tuple[str, bytes]) -> None:
    name, content = change
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), **{name: content})
        with only_clear_errors():
            load(Path(folder))


@pytest.mark.parametrize("name", [HEADER, INDEX, "0.bin"])
def test_no_pickle_is_run(name: str, tmp_path: Path) -> None:
    write(tmp_path, **{name: pickle.dumps(Command(tmp_path / "ran"))})
    with pytest.raises(ConfigError, match="is damaged"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [HEADER, INDEX, "0.bin"])
def test_no_link_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    """What a run would read, and what it would remove."""
    write(tmp_path / "run")
    outside = (tmp_path / "run/1" / name).rename(tmp_path / "outside")
    (tmp_path / "run/1" / name).symlink_to(outside)
    with pytest.raises((ConfigError, OSError)):
        load(tmp_path / "run")
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    checkpoints.save(2, arrays(), {})
    checkpoints.close()
    assert outside.exists()


def test_a_folder_that_is_a_link_is_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/1").symlink_to(tmp_path / "other/1")
    assert Checkpoints(tmp_path / "run", keep=1).newest() is None


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"crc32": 0, "content": ' + "[" * 100_000], ids=["all", "content"])
def test_a_description_nested_without_end_is_damage(nested: str, tmp_path: Path) -> None:
    write(tmp_path, **{HEADER: nested.encode()})
    with only_clear_errors(), pytest.raises(ConfigError, match="is damaged"):
        load(tmp_path)
