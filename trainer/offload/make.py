"""The keeper of a config's training state, with room for it found before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import jax.numpy as jnp
import psutil

from trainer.errors import ConfigError
from trainer.keeper import Keeper, OnDevices
from trainer.offload.exchange import Exchange
from trainer.offload.lanes import NO_LANES, Lanes
from trainer.offload.layers import Layers, layer_bytes, layer_shards
from trainer.offload.nvme import Nvme
from trainer.offload.offloaded import AHEAD, Offloaded
from trainer.offload.tiers import Memory, Tier
from trainer.processes.membership import process_index
from trainer.program import Program
from trainer.units import binary

CGROUP_LIMIT, CGROUP_USE = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def make_keeper(program: Program, say: Callable[[str], None], lanes: Lanes = NO_LANES) -> Keeper:
    """Whoever keeps the state where the config says; `say` is told what it takes.

    Raises:
        ConfigError: there is no room for what is offloaded, or what it needs is not installed.
    """
    if not program.offloaded:
        return OnDevices(program)
    config = program.config.offload
    file = Path(config.path or "", f"meshwright-{program.config.run.name}-{process_index()}").absolute()

    def make_tier(sizes: Sequence[int]) -> Tier:
        if config.optimizer == "host":
            _require_memory(sum(sizes), "use offload.optimizer=nvme, or train with more processes")
            say(f"offload: {binary(sum(sizes))} of optimizer state in host memory")
            return Memory(sizes)
        _require_memory(config.buffers * max(sizes), "use a smaller offload.bucket, or fewer offload.buffers")
        whole = file.with_name(f"{file.name}.offload")
        tier = Nvme(whole, sizes, buffers=config.buffers, direct=config.direct_io, lanes=lanes)
        say(
            f"offload: {binary(sum(sizes))} of optimizer state in {config.path}, through {config.buffers} buffers of "
            f"{binary(max(sizes))} in host memory"
        )
        return tier

    def make_layers(exchange: Exchange, most: int) -> Layers:
        adds, dtype = program.accumulation > 1, jnp.dtype(program.zero.compute)
        sizes = layer_bytes(layer_shards(exchange, program.in_file), program.config.model.layers, dtype.itemsize, adds)
        _require_memory(sizes.buffers, "train with more processes, or a smaller model.hidden")
        layers = Layers(
            exchange,
            program.in_file,
            dtype,
            file,
            adds=adds,
            most=most,
            waiting=AHEAD + 1,
            direct=config.direct_io,
            lanes=lanes,
        )
        say(
            f"offload: {binary(sizes.weights)} of layers' weights and {binary(sizes.gradients)} of their gradients in "
            f"{config.path}, through buffers of {binary(sizes.buffers)} in host memory"
        )
        return layers

    return Offloaded(program, make_tier, lanes, make_layers if program.in_file else None)


def available_memory() -> int:
    """Bytes that this process can still take: of the machine, and of the control group that it runs in."""
    free = psutil.virtual_memory().available
    try:
        return min(free, int(CGROUP_LIMIT.read_text()) - int(CGROUP_USE.read_text()))
    except (OSError, ValueError):  # no such group, or one without a limit
        return free


def _require_memory(needed: int, advice: str) -> None:
    if needed > (there := available_memory()):
        raise ConfigError(
            f"offloading the optimizer takes {binary(needed)} of this host's memory, of which {binary(there)} is "
            f"free; {advice}"
        )
