"""Whether a config fits into the GPUs that are there, by what JAX has taken of them: said before a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import jax

from trainer.config import Config
from trainer.gpu_memory import FRACTION, VARIABLE, asked_for
from trainer.planner.arrangement import Arrangement
from trainer.planner.estimate import estimate
from trainer.planner.gpu import described
from trainer.planner.ranking import with_margin
from trainer.units import GIB

SHORT = 0.98
"""Part of what was asked for below which JAX has taken less: it rounds, and a card's memory differs a little."""


def pool_of(devices: Sequence[jax.Device]) -> float | None:
    """Bytes that JAX may use of each device; None where it cannot tell."""
    limits = []
    for device in devices:
        with suppress(jax.errors.JaxRuntimeError):  # of a device that is not there
            limits.append((device.memory_stats() or {}).get("bytes_limit"))
    return min((float(limit) for limit in limits if limit), default=None)


def memory_notes(config: Config, devices: Sequence[jax.Device]) -> Iterator[str]:
    """What is to be said of the memory of GPUs before a run of `config`, laid out on all of them, begins on these of
    its devices."""
    pool = None if devices[0].platform == "cpu" else pool_of(devices)
    if pool is None:
        return
    kind = devices[0].device_kind
    yield f"memory: JAX takes {pool / GIB:.1f} GiB of each {kind} ({asked_for()})"
    if (gpu := described(kind)) is None:
        return
    if pool < SHORT * gpu.pool_bytes:
        yield (
            f"WARNING: that is less than the {gpu.pool_bytes / GIB:.1f} GiB that plans go by; where JAX had started "
            f"before the trainer was made, set {VARIABLE}={FRACTION} before anything uses JAX"
        )
    with suppress(ValueError):  # what cannot be planned is not judged
        made = estimate(Arrangement.of(config), gpu.with_pool(pool))
        needed, limit = made.bytes_per_gpu, made.gpu.limit_bytes
        if with_margin(made.memory[made.worst_stage]) > limit:
            yield (
                f"WARNING: by the plan it takes {needed / GIB:.1f} of {limit / GIB:.1f} GiB, which may be too much: "
                "meshwright plan CONFIG says of what, and what helps"
            )
