"""What the accelerators can do by their data sheets, and what they hold in memory now.

Knows nothing of models. A device is anything that can be asked for its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import psutil

# Part of the device kind -> FLOP/s in bfloat16 and float16, without sparsity. The first that fits counts.
_PEAKS = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H200 NVL", 835e12),
    ("A100", 312e12),
    ("H100", 989e12),
    ("H200", 989e12),  # GH200 too: its GPU is the same
    ("GB200", 2500e12),
    ("B200", 2250e12),
)
# Whole device kind -> the same: others begin with these names, and are slower.
_PEAKS_BY_NAME = {
    "NVIDIA GeForce RTX 4090": 165.2e12,
    "NVIDIA GeForce RTX 5090": 209.5e12,
    "NVIDIA RTX 6000 Ada Generation": 364.2e12,
    "NVIDIA RTX A6000": 154.8e12,
    "NVIDIA L40S": 362.05e12,
    "NVIDIA L4": 121e12,
    "NVIDIA A10G": 70e12,
    "Tesla V100-SXM2-32GB": 125e12,
}


class Device(Protocol):
    def memory_stats(self) -> dict[str, int] | None: ...


def peak_flops(device_kind: str, compute_dtype: str) -> float | None:
    """Dense peak of one device in FLOP/s, or None for a device or a dtype that is not in the table.

    float32 has none: what its matmuls run in (float32 or TF32) is XLA's choice.
    """
    if compute_dtype not in ("bfloat16", "float16"):
        return None
    by_part = next((peak for part, peak in _PEAKS if part in device_kind), None)
    return _PEAKS_BY_NAME.get(device_kind, by_part)


def memory_in_use(devices: Iterable[Device]) -> dict[str, int]:
    """Bytes now: `host` of this process, and, where devices can tell, `device` of the fullest one."""
    in_use = {"host": int(psutil.Process().memory_info().rss)}
    used = [stats["bytes_in_use"] for stats in (device.memory_stats() for device in devices) if stats]
    return in_use | {"device": max(used)} if used else in_use


def memory_taken(devices: Iterable[Device]) -> dict[str, int]:
    """Bytes, as a log has them: `host_bytes` that this process has in memory now, and, where devices can tell,
    `device_bytes`, the most that any of them ever had in use."""
    told = [device.memory_stats() or {} for device in devices]
    most = [stats["peak_bytes_in_use"] for stats in told if "peak_bytes_in_use" in stats]
    taken = {"host_bytes": int(psutil.Process().memory_info().rss)}
    return taken | {"device_bytes": max(most)} if most else taken
