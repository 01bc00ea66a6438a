"""What can be taken off GPUs that are too small for a config, in the order in which it is considered.

Settings only: what they save is told by memory's closed forms, and what they cost by those of seconds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from trainer.config import Config

Settings = dict[str, Any]
"""By key, as `offload.optimizer`."""

STATE: tuple[Settings, ...] = (
    {"offload.optimizer": "host"},
    {"zero.stage": 3, "offload.optimizer": "host", "offload.parameters": "host"},
)
"""Of what a GPU holds whatever the batch: ever more of it, and ever slower. Layers are streamed under ZeRO 3."""

ACTIVATIONS: Settings = {"offload.activations": "host"}

RUNGS: tuple[Settings, ...] = (*STATE, {**STATE[-1], **ACTIVATIONS, "recompute.policy": "full"})
"""What a search tries, one after the other. What is kept of activations costs time on the link: so the least."""


def changed(config: Config, settings: Settings) -> Config:
    """The config with these settings; whether they fit its layout is not asked."""

    def put(config: Config, key: str) -> Config:
        section, name = key.split(".")
        return replace(config, **{section: replace(getattr(config, section), **{name: settings[key]})})

    return reduce(put, settings, config)


def written(settings: Settings) -> str:
    """As overrides, after a command."""
    return " ".join(f"{key}={value}" for key, value in settings.items())
