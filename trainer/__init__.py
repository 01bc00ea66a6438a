"""meshwright: train language models too large for one accelerator, from one mesh config.

from trainer import Config, Trainer
Trainer(Config.load("configs/quickstart.yaml", ["train.steps=50"])).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.errors import ConfigError
    from trainer.trainer import Trainer

__all__ = ["Config", "ConfigError", "Trainer"]
_HOMES = {"Config": "trainer.config", "ConfigError": "trainer.errors", "Trainer": "trainer.trainer"}


def __getattr__(name: str) -> Any:
    """Imported when first used, so that the command line's help need not wait for JAX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
