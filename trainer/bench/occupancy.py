"""How many programs of a kernel a multiprocessor holds at a time, as CUDA's occupancy calculator has it.

Limits are those of the GPU's `xla_target`. Knows nothing of what a kernel does.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from trainer.errors import ConfigError
from trainer.planner.gpu import Gpu

WARP = 32
PARTITIONS = 4
"""Of a multiprocessor, each with a quarter of the registers and warps of its own."""
MOST_PROGRAMS = 32
REGISTERS_AT_A_TIME = 256
"""In which they are given to a warp."""
RESERVED = 1024
"""Bytes of shared memory that each program takes besides, since compute capability 8.0."""


class Occupancy(NamedTuple):
    programs: int
    """On one multiprocessor; 0 where not even one has room."""
    warps: float
    """Part of those that it could hold."""


def occupancy(gpu: Gpu, registers: int, shared_memory: int, threads: int) -> Occupancy:
    """Of one kernel.

    Args:
        registers: of a thread.
        shared_memory: bytes of a program.
        threads: of a program.

    Raises:
        ConfigError: `xla_target` lacks a limit.
    """
    warps, most_warps = -(-threads // WARP), _limit(gpu, "threads_per_core_limit") // WARP
    of_warp = -(-registers * WARP // REGISTERS_AT_A_TIME) * REGISTERS_AT_A_TIME
    warps_by_registers = _limit(gpu, "registers_per_core_limit") // PARTITIONS // of_warp * PARTITIONS
    programs = min(
        MOST_PROGRAMS,
        min(most_warps, warps_by_registers) // warps,
        _limit(gpu, "shared_memory_per_core") // (shared_memory + RESERVED),
    )
    return Occupancy(programs, programs * warps / most_warps)


def _limit(gpu: Gpu, name: str) -> int:
    found = re.search(rf"\b{name}: (\d+)", gpu.xla_target)
    if found is None:
        raise ConfigError(f"GPU {gpu.name}: xla_target has no {name}; see those of a100, h100, h200 and b200")
    return int(found[1])
