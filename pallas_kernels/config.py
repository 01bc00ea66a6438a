"""How a config says what computes attention."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class AttentionConfig:
    """What computes attention while training; decoding uses the reference."""

    implementation: Literal["auto", "pallas", "reference"] = "auto"
    """`pallas`: flash attention, for NVIDIA GPUs; interpreted on CPU, slowly. `reference`: XLA's matmuls, whose scores
    take heads x sequence² of memory. `auto` takes what a GPU has shown to be right: today the reference."""
