"""A checkpoint that is not what was written is found, by name, and nothing of it is used."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.checkpoint import Checkpoints
from trainer.checkpoint.header import FORMAT, HEADER
from trainer.checkpoint.sealed import read_sealed, write_sealed
from trainer.errors import ConfigError
from trainer.offload.buffers import PAGE

SIZES = {"parameters.weight": 5000, "optimizer.mu.weight": 3000, "step": 1}
BYTES = {name: 4 * size for name, size in SIZES.items()}


def arrays() -> dict[str, jax.Array]:
    return {name: jnp.arange(size, dtype=jnp.float32) + 1 for name, size in SIZES.items()}


def abstract() -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays().items()}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(folder, keep=2)
    for step in (10, 20):
        checkpoints.save(step, arrays(), {"tokens": step})
    checkpoints.close()
    return folder


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    """A copy, for damage."""
    return shutil.copytree(intact, tmp_path / "checkpoints")


def refused(folder: Path, what: str, step: int = 20) -> None:
    with pytest.raises(ConfigError, match=f"checkpoints/{step} {what}"):
        Checkpoints(folder, keep=2).restore(step, abstract())


def places(folder: Path) -> dict[str, int]:
    """Where each array begins in the only file."""
    index = read_sealed(folder / "20/0.json")
    return {name: index[name]["pieces"][0]["offset"] for name in index}


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.mark.parametrize("name", SIZES)
def test_any_flipped_bit_is_found_and_its_array_named(name: str, folder: Path) -> None:
    """The first bit, the last one, and some between."""
    start, size = 8 * places(folder)[name], 8 * BYTES[name]
    for bit in (0, size - 1, *np.random.default_rng(0).integers(size, size=5)):
        flip(folder / "20/0.bin", start + int(bit))
        refused(
            folder,
            rf"is damaged: {re.escape(name)}: its checksum is another \(0.bin, byte {start // 8} on\)\. "
            "Remove it to go on from step 10",
        )
        flip(folder / "20/0.bin", start + int(bit))
    Checkpoints(folder, keep=2).restore(20, abstract())  # all is well again


def test_arrays_that_are_not_asked_for_may_be_damaged(folder: Path) -> None:
    flip(folder / "20/0.bin", 8 * places(folder)["optimizer.mu.weight"])
    found = Checkpoints(folder, keep=2).restore(20, abstract(), ["parameters.weight"])
    np.testing.assert_array_equal(found["parameters.weight"], arrays()["parameters.weight"])


@pytest.mark.parametrize("file", ["0.json", HEADER])
def test_any_flipped_bit_of_what_describes_it_is_found(file: str, folder: Path) -> None:
    path = folder / "20" / file
    for bit in np.random.default_rng(0).integers(8 * path.stat().st_size, size=30):
        before = path.read_bytes()
        flip(path, int(bit))
        if json.loads(before) != _loads(path):  # not where 1e5 has become 1E5
            refused(folder, f"is damaged: {file} is not what was written. Remove it to go on from step 10")
        path.write_bytes(before)


def _loads(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def test_files_that_are_short_or_gone_are_found(folder: Path) -> None:
    file = folder / "20/0.bin"
    with file.open("r+b") as opened:
        opened.truncate(PAGE)
    refused(folder, r"is damaged: \S+: it is cut short \(0.bin, byte")
    file.unlink()
    refused(folder, r"is damaged: \S+: 0.bin is missing \(")
    (folder / "20/0.json").unlink()
    refused(folder, "is damaged: 0.json is missing")
    (folder / "20" / HEADER).unlink()
    refused(folder, f"is damaged: {HEADER} is missing")


def test_a_newer_format_is_refused_and_not_called_damaged(folder: Path) -> None:
    path = folder / "20" / HEADER
    header = read_sealed(path) | {"format": FORMAT + 1, "meta": {"meshwright": "9.1"}, "unheard_of": 1}
    path.unlink()
    write_sealed(path, header)
    refused(folder, rf"was written by a newer meshwright \(9.1; format {FORMAT + 1}, and this one reads up to")


FORGED: dict[str, dict[str, Any]] = {
    "outside": {"start": [4000]},
    "negative": {"start": [-1]},
    "before the file": {"offset": -4096},
    "of other dims": {"start": [0, 0], "shape": [50, 100]},
    "of other sums": {"crc32": []},
    "not numbers": {"start": ["../x"]},
}


@pytest.mark.parametrize("change", FORGED)
def test_an_index_that_is_forged_is_refused(change: str, folder: Path) -> None:
    path = folder / "20/0.json"
    index = read_sealed(path)
    index["parameters.weight"]["pieces"][0] |= FORGED[change]
    path.unlink()
    write_sealed(path, index)
    refused(folder, "is damaged: ")


@pytest.mark.parametrize("dtype", ["object", "O", "V0", "U4", "none", 7])
def test_only_numbers_are_loaded(dtype: object, folder: Path) -> None:
    path = folder / "20/0.json"
    index = read_sealed(path)
    index["parameters.weight"]["dtype"] = dtype
    path.unlink()
    write_sealed(path, index)
    refused(folder, "(is damaged|is a checkpoint of another model)")


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither a step nor a file of one can be elsewhere."""
    elsewhere = (folder / "20").rename(tmp_path / "elsewhere")
    (folder / "20").symlink_to(elsewhere)
    assert Checkpoints(folder, keep=2).steps() == [10]
    (folder / "20").unlink()
    elsewhere.rename(folder / "20")
    (folder / "20/0.bin").rename(tmp_path / "data")
    (folder / "20/0.bin").symlink_to(tmp_path / "data")
    with pytest.raises(OSError, match=r"Too many levels of symbolic links"):
        Checkpoints(folder, keep=2).restore(20, abstract())


@pytest.mark.parametrize("name", ["007", "-3", "3.0", "..", "٣", "1e3", "3.0123abcd.writing", "3.deleting"])
def test_what_is_no_step_is_none(name: str, folder: Path) -> None:
    (folder / name).mkdir(exist_ok=True)
    assert Checkpoints(folder, keep=2).steps() == [10, 20]
