"""A run whose optimizer state is offloaded: saved and resumed anywhere, and nothing of it is left behind."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.errors import OffloadError

pytestmark = pytest.mark.optimised  # bits of two programs, which else round in two ways

HALF = 2
HOST = {"offload.optimizer": "host", "offload.bucket": 500}
ANOTHER_MESH: dict[str, Any] = {"mesh": {"data": 3, "tensor": 1, "virtual_devices": 3}, "batch.global": 6}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Its batch divides over two data ranks and over three."""
    folder = tmp_path_factory.mktemp("offloaded")
    tree = small.tree(small.write_text(folder / "text"), folder / "off")
    return tree | {"mesh": {"data": 2, "tensor": 2, "virtual_devices": 4}, "batch": {"global": 6, "sequence": 16}}


@pytest.fixture(scope="module")
def nvme(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("disk")
    return {"offload.optimizer": "nvme", "offload.path": str(path), "offload.bucket": 300, "offload.direct_io": False}


def losses(trainer: Trainer) -> list[bytes]:
    return [np.asarray(metrics.loss).tobytes() for metrics in trainer.steps(HALF)]


def state_of(trainer: Trainer) -> dict[str, np.ndarray]:
    return jax.device_get(trainer.state)


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert (array.dtype, array.tobytes()) == (other[name].dtype, other[name].tobytes()), name


def copied(trainer: Trainer, to: Path, overrides: dict[str, Any]) -> Trainer:
    """Goes on from what another run has saved."""
    shutil.copytree(trainer.folder, to)
    return Trainer.from_run(to, overrides)


@pytest.fixture(scope="module")
def unbroken(tree: dict[str, Any]) -> tuple[Trainer, list[bytes]]:
    """Nothing offloaded, never stopped."""
    trainer = Trainer(Config.from_dict(tree))
    return trainer, losses(trainer) + losses(trainer)


@pytest.fixture(scope="module")
def saved(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, list[bytes]]:
    """Half of the run with the optimizer's state in host memory, saved."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    trainer = Trainer(Config.from_dict(tree, HOST | {"run.dir": str(folder)}))
    found = losses(trainer)
    trainer.save()
    return trainer, found


def test_what_is_saved_from_the_host_goes_on_without_offload(
    saved: tuple[Trainer, list[bytes]], unbroken: tuple[Trainer, list[bytes]], tmp_path: Path
) -> None:
    trainer, first = saved
    resumed = copied(trainer, tmp_path / "run", {"offload": {"optimizer": "none"}})
    same_bits(state_of(resumed), state_of(trainer))
    assert first + losses(resumed) == unbroken[1]
    same_bits(state_of(resumed), state_of(unbroken[0]))


def test_on_another_mesh_nvme_goes_on_as_no_offload_does(
    saved: tuple[Trainer, list[bytes]], nvme: dict[str, Any], tmp_path: Path
) -> None:
    trainer, _ = saved
    off = copied(trainer, tmp_path / "off", ANOTHER_MESH | {"offload": {"optimizer": "none"}})
    on = copied(trainer, tmp_path / "on", ANOTHER_MESH | nvme)
    same_bits(state_of(on), state_of(trainer))
    assert losses(on) == losses(off)
    same_bits(state_of(on), state_of(off))
    on.save()
    measured_meanwhile = Trainer.from_run(on.folder)
    assert measured_meanwhile.evaluate() == on.evaluate() == off.evaluate()
    same_bits(state_of(copied(on, tmp_path / "back", {"offload": {"optimizer": "none"}})), state_of(off))

    (file,) = Path(nvme["offload.path"]).iterdir()
    assert file.suffix == ".offload"
    del on
    gc.collect()
    assert not file.exists()


def test_a_disk_that_fails_leaves_the_newest_checkpoint(
    saved: tuple[Trainer, list[bytes]], nvme: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, _ = saved
    broken = copied(trainer, tmp_path / "run", ANOTHER_MESH | nvme)
    before = state_of(broken)
    list(broken.steps(1))
    monkeypatch.setattr(os, "preadv", fails)
    unreadable = r"\.offload, .* could not be read at byte \d+ \(Input/output error\)"
    with pytest.raises(OffloadError, match=unreadable):
        broken.save()
    with pytest.raises(OffloadError, match=unreadable):
        losses(broken)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"a step was broken off half way.*newest checkpoint"):
        broken.save()
    again = Trainer.from_run(tmp_path / "run", ANOTHER_MESH | nvme)
    same_bits(state_of(again), before)


def fails(*arguments: object) -> int:
    raise OSError(5, os.strerror(5))
