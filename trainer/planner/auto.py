"""`mesh: auto` filled in: the fastest layout that fits on the devices that are there, or on GPUs that are not.

Each function also says in a line what was taken. Knows nothing of how a search goes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial

import jax

from sharding.mesh import MeshConfig
from trainer.config import Config
from trainer.config_auto import AutoMesh
from trainer.errors import ConfigError
from trainer.gpu_memory import asked_for
from trainer.planner.compiled import compile_for
from trainer.planner.gpu import KINDS, Gpu, described, load
from trainer.planner.here import pool_of
from trainer.planner.ranking import MARGIN, Choice
from trainer.planner.search import Compiler, Say, quiet, search
from trainer.processes.membership import process_count
from trainer.units import GIB


def fill_in(config: Config, gpu: Gpu, gpus: int | None, gpus_per_node: int) -> tuple[Config, str | None]:
    """Any config, for so many GPUs that need not be there; what is said is None where nothing was open.

    Raises:
        ConfigError: see `trainer.planner.search.search`; or the number of GPUs is open too.
    """
    if not isinstance(config.mesh, AutoMesh):
        return config, None
    if gpus is None:
        raise ConfigError("mesh: auto needs a number of GPUs, such as --gpus 8; or give a mesh, such as mesh={data: 8}")
    laid_out, choice = _search(config, gpu, gpu.pool_bytes, gpus, gpus_per_node)
    return laid_out, f"mesh: auto takes {choice.candidate}"


def fill_in_here(config: Config, devices: Sequence[jax.Device], say: Say = quiet) -> tuple[Config, str | None]:
    """The same for the devices that it will run on: compiled for them, so that it fits.

    A CPU has no description to search by: all its devices stand along `data`, and the rest is as the config has it.

    Raises:
        ConfigError: see `trainer.planner.search.search`; or the devices are of a kind that is not described, or belong
            to several processes.
    """
    if not isinstance(config.mesh, AutoMesh):
        return config, None
    if devices[0].platform == "cpu":
        mesh = MeshConfig(data=len(devices))
        return dataclasses.replace(config, mesh=mesh), f"mesh: auto takes data {mesh.data}: on CPUs nothing is searched"
    if process_count() > 1:  # they might see unequal memory, and choose unequally
        raise ConfigError(
            f"mesh: auto is for one process, and there are {process_count()}; train what meshwright search CONFIG "
            f"--gpus {len(devices)} --out FOUND finds"
        )
    kind = devices[0].device_kind
    if (gpu := described(kind)) is None:
        raise ConfigError(
            f"mesh: auto knows {', '.join(load(name).device_kind for name in KINDS)}, and not {kind}; describe it in a "
            "YAML file, and train what meshwright search CONFIG --gpu FILE --gpus N --out FOUND finds; or give a mesh, "
            "such as mesh={data: -1}"
        )
    pool = pool_of(devices) or gpu.pool_bytes
    limited = dataclasses.replace(gpu, name=f"{gpu.name} with {pool / GIB:.1f} GiB for JAX ({asked_for()})")
    gpus_per_node = max(Counter(device.process_index for device in devices).values())
    compiler = partial(compile_for, devices=devices)
    say(f"mesh: auto: searching for {len(devices)} x {limited.name}")
    laid_out, choice = _search(config, limited, pool, len(devices), gpus_per_node, compiler, say)
    return laid_out, (
        f"mesh: auto takes {choice.candidate}: {choice.seconds:.3g} s per step by closed forms, and compiled to "
        f"{(choice.compiled or 0) / GIB:.1f} GiB of each {limited.name}"
    )


def _search(
    config: Config,
    gpu: Gpu,
    pool: float,
    gpus: int,
    gpus_per_node: int,
    compiler: Compiler | None = None,
    say: Say = quiet,
) -> tuple[Config, Choice]:
    """The winner, which leaves a margin of `pool` bytes, and is compiled if that is possible."""
    gpu = gpu.with_pool((1 - MARGIN) * pool)
    compiled = 1 if compiler else 0
    choice = search(config, gpu, gpus, gpus_per_node, top=1, compiled=compiled, compiler=compiler, say=say).winner
    return Config.from_dict(choice.candidate.on(config.to_dict())), choice
