"""The `pipeline` section of a config. Knows the names of schedules, not how they are made."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class PipelineConfig:
    """How layers and micro-batches are spread over the stages of `mesh.pipeline`."""

    schedule: str = Field(default="1f1b", min_length=1)
    """gpipe, 1f1b, interleaved_1f1b, or a table of your own in a .csv file: [pipelines.md](pipelines.md#schedules)."""
    virtual_stages: int = Field(default=1, ge=1, le=10_000)
    """Parts that the layers of each device are cut into, for interleaved_1f1b or a table of your own."""
    layers: tuple[int, ...] | None = None
    """Layers of every (virtual) stage in the order of the model, such as [5, 6, 6, 5]; unless given, as even as can be,
    the first stages having one more."""
    keep: Literal["residuals", "inputs"] = "residuals"
    """What a stage keeps of a micro-batch for its backward pass: the activations that `recompute` leaves, or only what
    came in, to run the whole stage again ([table](pipelines.md#what-a-stage-keeps))."""
    head: Literal["spread", "last"] = "spread"
    """Where embedding and output matrix are: cut over all stages by vocabulary, or whole, used by the first and the
    last ([costs](pipelines.md#embedding-and-head))."""
