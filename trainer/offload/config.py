"""How a config says what is kept in host memory or on NVMe instead of on the devices."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class OffloadConfig:
    """What is not kept on the devices."""

    activations: Literal["none", "host"] = "none"
    """`host`: what the recompute policy keeps for the backward pass waits for it in host memory:
    [offload.md](offload.md#activations-on-the-host)."""
