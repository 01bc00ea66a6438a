"""Memory that was not enough, as one message: what was asked for, what there is, and the settings that help most.

JAX raises what XLA says of it, wherever a program is compiled or run, in the words of whichever allocator it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax
import psutil

from trainer.config import Config
from trainer.errors import PermanentError
from trainer.gpu_memory import asked_for
from trainer.planner.fitting import saves
from trainer.planner.gpu import described, load
from trainer.planner.here import pool_of
from trainer.processes.membership import process_index
from trainer.units import GIB

if TYPE_CHECKING:
    from trainer.trainer import Trainer

MOST_TOLD = 3
"""Settings that would help: the fastest."""
UNKNOWN = "h100"
"""What a device that is not described is taken for, with the memory that it has."""
WITHOUT_A_PLAN = "a smaller batch.micro, recompute=full, zero.stage=3, or offload.optimizer=host"
_ASKED = re.compile(r"allocat\w*(?: request for)?:? (\d+(?:\.\d+)?) ?(bytes|B|[KMGT]i?B)", re.IGNORECASE)
_UNITS = {unit: 2.0 ** (10 * power) for power, unit in enumerate("BKMGT")}


@contextmanager
def memory_told(trainer: Trainer) -> Iterator[None]:
    """`with` it around whatever takes memory for a trainer's program.

    Raises:
        PermanentError: there was not enough.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise PermanentError(_words(error, trainer)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it tells of memory that was not enough: not of a kernel that takes too much of a multiprocessor's."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return (
        isinstance(error, jax.errors.JaxRuntimeError)
        and re.search(r"out of memory|allocat", text, re.IGNORECASE) is not None
        and ("RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower())
        and "Shared memory" not in text
    )


def _words(error: BaseException, trainer: Trainer) -> str:
    devices = list(trainer.program.mesh.devices.flat)
    local = [device for device in devices if device.process_index == process_index()]
    missing = asked_bytes(str(error))
    asked = f"{_size(missing)} more were asked for" if missing else "more was asked for"
    newest = trainer.checkpoints.newest_here()
    kept = "nothing is saved yet" if newest is None else f"the newest checkpoint is that of step {newest}"
    return (
        f"out of memory on {devices[0].device_kind}: {asked}, and {_there(local)}; {kept}. As it is, it would run out "
        f"again. {_helps(trainer.config, local, missing or 0)}"
    )


def asked_bytes(text: str) -> float | None:
    """The size in an error's text that could not be had."""
    if (found := _ASKED.search(text)) is None:
        return None
    number, unit = found.groups()
    return float(number) * _UNITS["B" if unit.lower() == "bytes" else unit[0].upper()]


def _there(devices: list[jax.Device]) -> str:
    pool = pool_of(devices)
    if pool is None:
        memory = psutil.virtual_memory()
        return f"of this machine's {_size(memory.total)} {_size(memory.available)} are free"
    used = max((device.memory_stats() or {}).get("bytes_in_use", 0) for device in devices)
    return f"JAX has {_size(pool)} of each, with {_size(used)} in use ({asked_for()})"


def _helps(config: Config, devices: list[jax.Device], missing: float) -> str:
    on_cpu, pool = devices[0].platform == "cpu", pool_of(devices)
    gpu = described(devices[0].device_kind) or load(UNKNOWN)
    try:
        found = saves(config, gpu.with_pool(pool) if pool else gpu, missing, gpus_per_node=len(devices))
    except Exception:  # no plan is worth the message
        found = {}
    # A CPU's own memory is where it would go.
    ways = [way for way in found if not (on_cpu and "offload." in way)][:MOST_TOLD]
    return f"What helps, by the plan, the fastest first: {'; or '.join(ways)}" if ways else f"Try {WITHOUT_A_PLAN}"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= 0.1 * GIB else f"{num_bytes / 2**20:.1f} MiB"
