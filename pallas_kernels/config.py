"""How a config says what computes attention, and over what."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class AttentionConfig:
    """What computes attention while training, and what it goes over; decoding uses the reference."""

    implementation: Literal["auto", "pallas", "cudnn", "reference"] = "auto"
    """`pallas`: flash attention, for NVIDIA GPUs; interpreted on CPU, slowly. `cudnn`: NVIDIA's, for its GPUs, in 16
    bits and over whole sequences. `reference`: XLA's matmuls, whose scores take heads x sequence² of memory. `auto`:
    on GPUs, the fastest of those that compute the right numbers there, tried when a run starts; plans assume the first
    of these that can do it. On CPUs the reference."""
    over: Literal["document", "sequence"] = "document"
    """What a token sees of what is packed before it: its own document, whose positions begin at 0; or all of the
    sequence, whose positions run on across borders, as in Megatron-LM and nanoGPT unless told otherwise. A target in
    another document counts in neither."""
