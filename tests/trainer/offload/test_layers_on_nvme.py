"""Layers' weights and gradients in files: the training of layers in host memory, to the bit, and none of them there."""

from __future__ import annotations

import gc
import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.trainer import small
from trainer import Config, Trainer
from trainer.errors import ConfigError, OffloadError
from trainer.held import held
from trainer.off_device import off_device
from trainer.offload.offloaded import Offloaded

STEPS = 10
HOST = {"offload.optimizer": "host", "offload.parameters": "host", "offload.bucket": 500}
# Accumulated, padded, and with devices that hold the same; and one bucket larger than some rows, smaller than others.
MESHES: dict[str, dict[str, Any]] = {
    "data2_replica2": {
        "mesh": {"data": 2, "replica": 2, "virtual_devices": 4},
        "batch.global": 16,
        "batch.micro": 1,
        "optimizer.clip": 0.5,
    },
    "one_device_bfloat16": small.ON_ONE_DEVICE,
}


class Run:
    """Some steps with layers in host memory, and with layers in files."""

    def __init__(self, folder: Path, mesh: str) -> None:
        self.disk = folder / "disk"
        self.disk.mkdir()
        tree = small.tree(small.write_text(folder / "text"), folder / "host")
        tree["model"] |= {"layers": 5, "hidden": 20, "ffn": 151}
        self.nvme = {
            "optimizer": "nvme",
            "parameters": "nvme",
            "path": str(self.disk),
            "bucket": 500,
            "direct_io": False,
        }
        both = MESHES[mesh] | {"zero.stage": 3}
        self.on_host = Trainer(Config.from_dict(tree, both | HOST))
        in_files = {f"offload.{key}": value for key, value in self.nvme.items()} | {"run.dir": str(folder / "nvme")}
        self.in_files = Trainer(Config.from_dict(tree, both | in_files))
        self.metrics = [
            [tuple(np.asarray(x).tobytes() for x in metrics) for metrics in trainer.steps(STEPS)]
            for trainer in (self.on_host, self.in_files)
        ]


@pytest.fixture(scope="module", params=MESHES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("layers"), request.param)


def state_of(trainer: Trainer) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in trainer.state.items()}


def test_it_trains_as_from_host_memory_to_the_last_bit(run: Run) -> None:
    on_host, in_files = run.metrics
    assert on_host == in_files
    assert state_of(run.on_host) == state_of(run.in_files)


def test_only_buffers_are_in_host_memory(run: Run) -> None:
    assert not [name for name in run.in_files.restored_state.parameters if name.startswith("layers.")]
    sizes = {path.suffix: path.stat().st_size for path in run.disk.iterdir()}
    assert sizes.keys() == {".offload", ".weights", ".gradients"}
    keeper, program = run.in_files.keeper, run.in_files.program
    assert isinstance(keeper, Offloaded)
    assert keeper.layers is not None
    took = keeper.layers.bytes
    assert (took.weights, took.gradients) == (sizes[".weights"], sizes[".gradients"])
    planned = off_device(program.config, program.layouts, 0)
    devices = program.mesh.shape["data"]  # which hold different shards; the others share their rows
    assert planned.nvme == sum(sizes.values()) / devices
    gradients = 3 if program.accumulation > 1 else 1  # that leave, and two sums of micro-batches before
    assert took.buffers == (3 * took.weights + gradients * took.gradients) / 5
    assert planned.staging > took.buffers / devices


def test_what_is_kept_is_told_at_the_end(run: Run) -> None:
    text = io.StringIO()
    held(run.in_files, Console(file=text, width=200))
    assert "of layers' weights" in text.getvalue()


@pytest.mark.parametrize("run", ["data2_replica2"], indirect=True)
def test_it_is_measured_makes_text_and_goes_on_elsewhere(run: Run, tmp_path: Path) -> None:
    loss = run.on_host.evaluate()
    assert run.in_files.evaluate() == loss
    text = run.on_host.generate("def", 3, temperature=0)
    assert run.in_files.generate("def", 3, temperature=0) == text
    says = run.on_host.logits([[1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(run.in_files.logits([[1, 2, 3, 4, 5]]), says)
    run.in_files.save()
    of_checkpoint = Trainer.from_run(run.in_files.folder)  # while the run has its files
    assert of_checkpoint.evaluate() == loss
    assert of_checkpoint.generate("def", 3, temperature=0) == text
    copy = shutil.copytree(run.in_files.folder, tmp_path / "copy")
    elsewhere = {"offload": {"optimizer": "host", "parameters": "host"}}
    on_devices, on_host = (Trainer.from_run(copy, offload) for offload in ({"offload": {}}, elsewhere))
    assert state_of(on_devices) == state_of(on_host) == state_of(run.in_files)
    del of_checkpoint, on_devices
    expected = [float(metrics.loss) for metrics in on_host.steps(2)]
    on_host.save()
    run.disk.joinpath("back").mkdir()
    back = {"offload": run.nvme | {"path": str(run.disk / "back")}}
    again = Trainer.from_run(copy, back)
    assert state_of(again) == state_of(on_host)
    assert [float(metrics.loss) for metrics in run.in_files.steps(2)] == expected
    assert [m.loss for m in on_host.steps(1)] == [m.loss for m in again.steps(1)]


@pytest.mark.parametrize("call", ["preadv", "pwritev"])
@pytest.mark.parametrize("run", ["one_device_bfloat16"], indirect=True)
def test_a_disk_that_fails_in_a_step_ends_it_and_leaves_the_newest_checkpoint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run.in_files.save()
    copy = shutil.copytree(run.in_files.folder, tmp_path / "copy")
    before = state_of(run.in_files)
    folder = run.disk / call
    folder.mkdir()
    there = {"offload": run.nvme | {"path": str(folder)}}
    broken = Trainer.from_run(copy, there)
    list(broken.steps(1))
    if call == "preadv":
        monkeypatch.setattr(os, call, fails)
        with pytest.raises(OffloadError, match=r"\.weights, .* could not be read at byte"):
            broken.evaluate()
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OffloadError, match=r"\.(weights|gradients|offload), .* could not be (read|written) at byte"):
        list(broken.steps(1))
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"a step was broken off half way"):
        list(broken.steps(1))
    assert not list(folder.iterdir())
    again = Trainer.from_run(copy, there)
    assert state_of(again) == before


def fails(*arguments: object) -> int:
    raise OSError(5, os.strerror(5))


def test_a_second_run_of_that_name_is_refused_and_the_files_go_with_the_first(tmp_path: Path) -> None:
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    tree |= {"mesh": {"virtual_devices": 1}, "zero": {"stage": 3}}
    tree["offload"] = {"optimizer": "nvme", "parameters": "nvme", "path": str(tmp_path), "direct_io": False}
    first = Trainer(Config.from_dict(tree))
    assert first.restored_state
    files = {path.suffix for path in tmp_path.iterdir() if path.name.startswith("meshwright-small-0.")}
    with pytest.raises(ConfigError, match="is in use by process"):
        assert Trainer(Config.from_dict(tree)).restored_state
    del first
    gc.collect()
    assert files == {".offload", ".weights", ".gradients"}
    assert not list(tmp_path.glob("meshwright-*"))


REFUSED = {
    "offload.optimizer=host": "offload.parameters=nvme needs the optimizer there too",
    "zero.stage=2": "needs zero.stage=3",
    "mesh={pipeline: 2}": "needs mesh.pipeline=1",
    "offload.path=null": "needs a folder on a local disk",
    "precision.compute=float16": "needs precision.compute=bfloat16 or float32",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_does_not_work_with_it_is_refused(override: str) -> None:
    offload = {"optimizer": "nvme", "parameters": "nvme", "path": "x"}
    with pytest.raises(ConfigError, match=REFUSED[override]):
        Config.from_dict({"model": {"layers": 2}, "zero": {"stage": 3}, "offload": offload}, [override])
