"""What is said of the memory of the GPUs that are there, before a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import jax
import pytest

from tests.trainer.planner.arrangements import TINY
from trainer.config import Config
from trainer.planner.arrangement import Arrangement
from trainer.planner.estimate import estimate
from trainer.planner.gpu import load
from trainer.planner.here import memory_notes, pool_of
from trainer.units import GIB

H100 = load("h100")
CONFIG = Config.from_dict({**TINY, "mesh": {"data": 4}})


def gpus(pool: float | None, kind: str = H100.device_kind) -> Sequence[jax.Device]:
    device = SimpleNamespace(
        platform="gpu", device_kind=kind, memory_stats=lambda: None if pool is None else {"bytes_limit": pool}
    )
    return cast("Sequence[jax.Device]", [device] * 4)


def notes(pool: float | None, kind: str = H100.device_kind) -> list[str]:
    return list(memory_notes(CONFIG, gpus(pool, kind)))


def test_a_run_says_what_jax_has_taken() -> None:
    (said,) = notes(H100.pool_bytes)
    assert said.startswith("memory: JAX takes 72.8 GiB of each NVIDIA H100 80GB HBM3 (XLA_")


def test_a_share_that_was_not_asked_for_in_time_is_told() -> None:
    _, warning = notes(0.75 * H100.memory_bytes)
    assert warning.startswith("WARNING: that is less than the 72.8 GiB that plans go by; where JAX had started before")
    assert "set XLA_CLIENT_MEM_FRACTION=0.92 before anything uses JAX" in warning


@pytest.mark.parametrize(("spare", "warned"), [(1.01, True), (1.1, False)])
def test_a_plan_that_is_near_what_jax_has_taken_is_told(spare: float, warned: bool) -> None:
    needed = estimate(Arrangement.of(CONFIG), H100).bytes_per_gpu - H100.reserved_bytes
    told = [note for note in notes(spare * needed) if "by the plan it takes" in note]
    assert bool(told) is warned


def test_an_unknown_gpu_is_not_judged() -> None:
    (said,) = notes(10 * GIB, "NVIDIA GeForce RTX 3060")
    assert said.startswith("memory: JAX takes 10.0 GiB of each NVIDIA GeForce RTX 3060")


def test_devices_that_cannot_tell_are_passed_over() -> None:
    assert notes(None) == []
    assert pool_of(gpus(None)) is None
    assert pool_of([*gpus(3), *gpus(2)]) == 2
    assert list(memory_notes(CONFIG, jax.devices())) == []
