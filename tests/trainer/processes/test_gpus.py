"""Which GPUs a process takes, by what its launcher shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.errors import ConfigError
from trainer.processes.gpus import count_gpus, local_devices
from trainer.processes.place import Environment, Place

ALL_EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7"}

TAKEN: dict[str, tuple[int | None, int | None, Environment, int, list[int] | None]] = {
    "one task a gpu": (8, 3, ALL_EIGHT, 8, [3]),
    "several gpus a task": (2, 1, ALL_EIGHT, 8, [4, 5, 6, 7]),
    "one task for all": (1, 0, ALL_EIGHT, 8, None),
    "bound by --gpus-per-task=1": (8, 3, ALL_EIGHT | {"CUDA_VISIBLE_DEVICES": "3"}, 8, None),
    "bound by --gpus-per-task=2": (4, 3, ALL_EIGHT | {"CUDA_VISIBLE_DEVICES": "0,1"}, 8, None),
    "what nobody has hidden": (4, 2, {}, 8, [4, 5]),
    "a part of the host": (2, 1, {"CUDA_VISIBLE_DEVICES": "4,5"}, 8, [1]),
    "a rank on the host alone": (None, 1, {}, 8, [1]),
    "no word of the host": (None, None, {}, 8, None),
    "no gpus": (4, 2, {}, 0, None),
    "given": (8, 3, ALL_EIGHT | {"MESHWRIGHT_LOCAL_DEVICES": "0, 7"}, 8, [0, 7]),
}


@pytest.mark.parametrize(("on_host", "index", "environment", "there", "taken"), TAKEN.values(), ids=TAKEN.keys())
def test_gpus_of_a_process(
    on_host: int | None, index: int | None, environment: Environment, there: int, taken: list[int] | None
) -> None:
    assert local_devices(Place("SLURM", "a:1", 16, 0, on_host, index), environment, there) == taken


@pytest.mark.parametrize(("on_host", "index"), [(3, 0), (16, 1), (None, 8)])
def test_what_does_not_share_out_is_refused(on_host: int | None, index: int) -> None:
    with pytest.raises(ConfigError, match=r"8 GPUs.*MESHWRIGHT_LOCAL_DEVICES"):
        local_devices(Place("SLURM", "a:1", 16, 0, on_host, index), ALL_EIGHT, 8)


def test_gpus_are_counted_by_the_drivers_folders(tmp_path: Path) -> None:
    assert count_gpus(tmp_path / "none") == 0
    (tmp_path / "0000:65:00.0").mkdir()
    (tmp_path / "0000:b3:00.0").mkdir()
    assert count_gpus(tmp_path) == 2
