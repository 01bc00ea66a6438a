"""ZeRO placeholder, replaced below."""
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ZeroConfig:
    """Which state is sharded over `data`, told as the time when weights are gathered and gradients scattered."""

    stage: int = Field(1, ge=0, le=3)
    persist_below: int = Field(0, ge=0)
    """Parameters with fewer elements than this (per layer, whole) stay replicated at every stage."""
