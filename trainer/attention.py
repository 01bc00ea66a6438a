"""What a config asks of attention, and what computes it. Knows no implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_kernels.attention import TO_BE_TRIED, Choice, Name, Wanted, choose, preferred
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config import Config


def wanted(config: Config, gpu: str | None) -> Wanted:
    """Of attention on GPUs of one kind (`jax.Device.device_kind`); "": of a kind that is not known; None: on CPU."""
    return Wanted(
        head_dim=config.model.dim_per_head,
        dtype=config.precision.compute,
        gpu=gpu,
        documents=config.attention.over == "document",
        alibi=config.model.positions == "alibi",
        soft_cap=config.model.soft_cap is not None,
    )


def assumed(config: Config) -> Name:
    """What a plan for GPUs takes to compute attention."""
    asked = config.attention.implementation
    return preferred(wanted(config, "")) if asked == "auto" else asked


def assumption(config: Config) -> str:
    """What a plan for GPUs takes to compute attention, in words for a user."""
    left_open = config.attention.implementation == "auto"
    return assumed(config) + (f", {TO_BE_TRIED}" if left_open else "")


def chosen(config: Config, gpu: str | None) -> Choice:
    """What computes attention there.

    Raises:
        ConfigError: the implementation that the config names cannot do what the config asks for, or is not installed.
    """
    try:
        return choose(config.attention.implementation, wanted(config, gpu))
    except ValueError as error:
        raise ConfigError(str(error)) from error
