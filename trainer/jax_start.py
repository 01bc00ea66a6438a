"""What is set before JAX looks for devices: how much of a GPU's memory it takes, and how it tells of a failed plugin.

Imports no JAX. Once JAX has started, nothing of it has an effect.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from trainer.gpu_memory import ask_for_memory

LOGGER = "jax._src.xla_bridge"
"""Says, with a traceback, that a plugin cannot be used."""
PLUGIN_FAILED = "Jax plugin configuration error"
"""How that begins."""


def prepare_jax() -> None:
    """To be called by whatever starts JAX, before; and as often as one likes."""
    ask_for_memory()
    logging.getLogger(LOGGER).addFilter(_one_line)  # a filter that is there already is not added again


def has_driver() -> bool:
    """Whether this machine has NVIDIA's."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _one_line(record: logging.LogRecord) -> bool:
    """Whether it is to be said. A plugin that fails is told in one line, and not at all where it has nothing to drive:
    the extra `plan` installs one that compiles for GPUs that are not there."""
    if not str(record.msg).startswith(PLUGIN_FAILED):
        return True
    if "cuda" in record.getMessage() and not has_driver():
        return False
    if record.exc_info:
        reason = str(record.exc_info[1]).partition("\n")[0]
        record.msg, record.args, record.exc_info = (
            f"{record.getMessage()}: {reason} (meshwright doctor tells more)",
            (),
            None,
        )
    return True
