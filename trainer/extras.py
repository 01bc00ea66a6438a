"""Packages that only some configs need: what is missing is said before any work is done. Imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config import Config


class Extra(NamedTuple):
    """An extra of meshwright, named as its package is asked for, and what asks for it."""

    name: str
    package: str
    asked_by: str
    is_asked: Callable[[Config], bool]
    way_out: str


EXTRAS = (
    Extra(
        "offload",
        "numba",
        "offload.optimizer",
        lambda config: config.offload.optimizer != "none",
        "use offload.optimizer=none",
    ),
    Extra("wandb", "wandb", "run.wandb", lambda config: config.run.wandb is not None, "leave run.wandb out"),
)


def require_extras(config: Config, *names: str) -> None:
    """Those of these names; all that training with logs may need, unless given.

    Raises:
        ConfigError: a package that the config asks for is not installed.
    """
    wanted = [extra for extra in EXTRAS if (not names or extra.name in names) and extra.is_asked(config)]
    missing = [extra for extra in wanted if not _is_installed(extra.package)]
    if missing:
        raise ConfigError(
            "\n".join(
                f"{extra.asked_by} is set, and {extra.package} is not installed; "
                f"pip install 'meshwright[{extra.name}]', or {extra.way_out}"
                for extra in missing
            )
        )


def _is_installed(package: str) -> bool:
    """Not what is only a folder of that name, as W&B leaves one where it writes."""
    if package in sys.modules:
        return sys.modules[package] is not None
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
