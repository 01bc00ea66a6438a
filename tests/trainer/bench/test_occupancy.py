"""Occupancy, against what CUDA's calculator says."""

from __future__ import annotations

import dataclasses

import pytest

from trainer.bench.occupancy import Occupancy, occupancy
from trainer.errors import ConfigError
from trainer.planner.gpu import load


@pytest.mark.parametrize(
    ("gpu", "registers", "shared_memory", "threads", "expected"),
    [
        ("h100", 128, 49152, 256, Occupancy(2, 0.25)),  # by registers
        ("h100", 129, 0, 256, Occupancy(1, 0.125)),  # given by eights: 136 leave no room for a second
        ("h100", 32, 0, 1024, Occupancy(2, 1.0)),  # by threads
        ("h100", 16, 0, 32, Occupancy(32, 0.5)),  # by the number of programs
        ("h100", 32, 75 * 1024, 128, Occupancy(3, 12 / 64)),  # by shared memory, of 228 KiB
        ("a100", 32, 75 * 1024, 128, Occupancy(2, 8 / 64)),  # of 164 KiB
        ("a100", 32, 170_000, 128, Occupancy(0, 0.0)),
    ],
)
def test_what_is_scarce_first_decides(
    gpu: str, registers: int, shared_memory: int, threads: int, expected: Occupancy
) -> None:
    assert occupancy(load(gpu), registers, shared_memory, threads) == expected


def test_a_gpu_that_is_not_described_is_refused() -> None:
    gpu = dataclasses.replace(load("h100"), xla_target="threads_per_core_limit: 2048")
    with pytest.raises(ConfigError, match="xla_target has no registers_per_core_limit"):
        occupancy(gpu, 128, 0, 256)
