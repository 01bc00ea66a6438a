"""How a config says what is kept in host memory or on NVMe instead of on the devices."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from trainer.path_types import LocalPath


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class OffloadConfig:
    """What is not kept on the devices."""

    optimizer: Literal["none", "host", "nvme"] = "none"
    """Where float32 master weights and moments are kept and updated: on the devices, or by the host's CPU cores, in its
    memory or in a file under `path`."""
    optimizer_fraction: float = Field(default=1.0, gt=0, le=1)
    """How much of them, in whole parameters; the rest stays on the devices."""
    parameters: Literal["none", "host", "nvme"] = "none"
    """Under ZeRO 3, the layers' weights and gradients stay in host memory, or in files under `path`, but for the layers
    at work."""
    path: LocalPath | None = Field(default=None, min_length=1)
    """A folder on a disk of this host, for what is kept on NVMe."""
    bucket: int = Field(default=4 * 2**20, ge=1)
    """Elements of a device's shard that travel and are updated at a time; of layers on NVMe, whole pages of them."""
    buffers: int = Field(default=4, ge=3)
    """Buckets that host memory holds of what is on NVMe: being read, updated and written."""
    direct_io: bool = True
    """Past the page cache. Where the file system cannot, it has to be switched off."""
    activations: Literal["none", "host"] = "none"
    """`host`: what the recompute policy keeps for the backward pass waits for it in host memory:
    [offload.md](offload.md#activations-on-the-host)."""
