"""Where offloaded state goes, what it takes is said before anything is trained, and refused where there is no room."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

from sharding.mesh import make_mesh
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.keeper import Keeper, OnDevices
from trainer.offload import make
from trainer.offload.choice import num_elements
from trainer.offload.tiers import Memory
from trainer.program import Program
from trainer.units import binary

TREE = {
    "model": {"layers": 2, "hidden": 16, "heads": 2, "vocab": 64, "context": 16},
    "mesh": {"data": 2},
    "batch": {"global": 4, "sequence": 16},
    "run": {"name": "tiny"},
}


def keep(offload: dict[str, Any], said: list[str] | None = None) -> Keeper:
    """What makes a keeper compiles nothing and starts nothing on the devices."""
    config = Config.from_dict({**TREE, "offload": offload})
    program = Program(config, make_mesh(config.mesh, jax.devices()[:2]))
    return make.make_keeper(program, (said if said is not None else []).append)


def nvme(folder: Path, **offload: Any) -> dict[str, Any]:
    return {"optimizer": "nvme", "path": str(folder), "direct_io": False, **offload}


def test_without_offload_the_devices_keep_everything_and_nothing_is_said() -> None:
    said: list[str] = []
    assert isinstance(keep({"optimizer": "none"}, said), OnDevices)
    assert said == []


def test_what_host_memory_takes_is_said() -> None:
    said: list[str] = []
    keep({"optimizer": "host"}, said)
    elements = sum(num_elements(Config.from_dict(TREE).model).values())
    assert said == [f"offload: {binary(3 * 4 * elements)} of optimizer state in host memory"]


def test_the_buffers_and_the_file_of_nvme_are_said(tmp_path: Path) -> None:
    said: list[str] = []
    keeper = keep(nvme(tmp_path, bucket=512, buffers=5), said)
    (file,) = tmp_path.iterdir()
    assert file.name == "meshwright-tiny-0.offload"
    (line,) = said
    assert f"of optimizer state in {tmp_path}, through 5 buffers of 6.00 KiB in host memory" in line
    del keeper


def test_the_file_goes_with_who_made_it(tmp_path: Path) -> None:
    keeper = keep(nvme(tmp_path))
    assert list(tmp_path.iterdir())
    del keeper
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_second_run_in_one_place_is_refused(tmp_path: Path) -> None:
    first = keep(nvme(tmp_path))
    with pytest.raises(ConfigError, match=r"tiny-0.offload is in use by .* name another folder"):
        keep(nvme(tmp_path))
    assert list(tmp_path.iterdir()), "the first goes on"
    del first


def no_tier(sizes: Sequence[int]) -> Memory:
    raise AssertionError("allocated what there is no room for")


def test_too_little_host_memory_is_refused_before_any_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "available_memory", lambda: 3 * 2**10)
    monkeypatch.setattr(make, "Memory", no_tier)
    with pytest.raises(ConfigError) as error:
        keep({"optimizer": "host"})
    message = str(error.value)
    assert "of this host's memory, of which 3.00 KiB is free" in message
    assert "offload.optimizer=nvme" in message
    assert "\n" not in message


def test_too_little_host_memory_for_the_buffers_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "available_memory", lambda: 3 * 2**10)
    with pytest.raises(ConfigError, match=r"takes 24.00 KiB .* 3.00 KiB is free; use a smaller offload.bucket"):
        keep(nvme(tmp_path, bucket=512))
    assert not list(tmp_path.iterdir())


def test_room_is_that_of_the_control_group_where_that_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, use = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(make, "CGROUP_LIMIT", limit)
    monkeypatch.setattr(make, "CGROUP_USE", use)
    of_the_machine = make.available_memory()
    assert of_the_machine > 2**20, "without a control group"
    use.write_text("4096\n")
    limit.write_text("max\n")
    assert make.available_memory() > 2**20
    limit.write_text("10240\n")
    assert make.available_memory() == 6144
