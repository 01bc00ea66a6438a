"""The step of a config, compiled by XLA for GPUs that are not there: seconds that it took, bytes that it sets aside.

XLA compiles for a described GPU, with jax's CUDA plugin and NVIDIA's assembler; no GPU is needed, and no driver. Knows
nothing of estimates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
from jax.experimental import topologies

from sharding.mesh import make_mesh
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.planner.gpu import Gpu
from trainer.planner.hlo import Module, read
from trainer.program import Program
from trainer.trace import Trace

PLUGINS = ("jax-cuda13-plugin", "jax-cuda13-pjrt")
"""Packages that have to be of jax's own version."""
TOOLS = ("nvidia-cuda-nvcc", "nvidia-nvvm")
"""Packages of which any version for CUDA 13 will do."""


@dataclass(frozen=True)
class CompiledStep:
    """A step that could run, were there the devices. Bytes are those of one GPU."""

    program: Program
    trace: Trace
    compiled: jax.stages.Compiled
    seconds: dict[str, float]
    """To trace, to lower and to compile."""

    @cached_property
    def module(self) -> Module:
        """XLA's scheduled program.

        Raises:
            HloError: it has something in a form that is not known.
        """
        return read(self.compiled.as_text() or "")

    @property
    def state(self) -> int:
        """Bytes that stay from step to step, and those of the batch: arguments, and results that take no argument's
        place."""
        memory = self._memory
        return int(memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)

    @property
    def temporary(self) -> int:
        """Bytes of XLA's buffers during a step."""
        return int(self._memory.temp_size_in_bytes)

    @property
    def host(self) -> int:
        """Bytes of host memory during a step: arguments, results that take no argument's place, and buffers."""
        memory = self._memory
        kept = memory.host_argument_size_in_bytes + memory.host_output_size_in_bytes - memory.host_alias_size_in_bytes
        return int(kept + memory.host_temp_size_in_bytes)

    @property
    def total(self) -> int:
        return self.state + self.temporary

    @property
    def _memory(self) -> Any:
        return self.compiled.memory_analysis()


def compile_step(
    config: Config, gpu: Gpu, gpus_per_node: int = 8, options: Mapping[str, Any] | None = None
) -> CompiledStep:
    """The very step that trains a config, no mesh axis of which is -1, compiled for as many GPUs as it asks for.

    Args:
        options: of XLA's compiler, by name.

    Raises:
        ConfigError: see `absent_gpus`.
    """
    devices = absent_gpus(gpu, math.prod(config.mesh.sizes.values()), gpus_per_node)
    return compile_for(config, devices, options)


def compile_for(
    config: Config, devices: Sequence[jax.Device], options: Mapping[str, Any] | None = None
) -> CompiledStep:
    """The same for devices that are there, or are not."""
    program = Program(config, make_mesh(config.mesh, devices))
    seconds, start = {}, time.perf_counter()
    with jax.set_mesh(program.mesh), jax.default_device(program.mesh.devices.flat[0]):
        traced = program.step.trace(*program.abstract_arguments())
        seconds["trace"], start = time.perf_counter() - start, time.perf_counter()
        lowered = traced.lower()
        seconds["lower"], start = time.perf_counter() - start, time.perf_counter()
        compiled = lowered.compile(compiler_options=dict(options or {}))
        seconds["compile"] = time.perf_counter() - start
    return CompiledStep(program, Trace(traced.jaxpr, program.pipeline), compiled, seconds)


def absent_gpus(gpu: Gpu, number: int, gpus_per_node: int = 8) -> list[jax.Device]:
    """GPUs in nodes of so many, that can be compiled for.

    Raises:
        ConfigError: what XLA needs for that is not installed, or not of jax's version; names the command that helps.
            Or the GPU's file has no `xla_target`.
    """
    gpu.require_target()
    check_installed()
    nodes = -(-number // gpus_per_node)
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name=gpu.name, target_config=gpu.xla_target, topology=f"1x{nodes}x{gpus_per_node}"
    )
    return list(topology.devices)[:number]


def check_installed(asked_by: str = "--compile") -> None:
    """Whether XLA can compile for GPUs here, as a command or an option asks for.

    Raises:
        ConfigError: a package is missing, or a plugin is not of jax's version.
    """
    found = {package: _version(package) for package in (*PLUGINS, *TOOLS)}
    command = " ".join(["pip install", *(f"{plugin}=={jax.__version__}" for plugin in PLUGINS), *TOOLS])
    if missing := [package for package, installed in found.items() if installed is None]:
        raise ConfigError(f"{asked_by} needs {', '.join(missing)}; no GPU is needed: {command}")
    if other := [plugin for plugin in PLUGINS if found[plugin] != jax.__version__]:
        differing = ", ".join(f"{plugin} {found[plugin]}" for plugin in other)
        raise ConfigError(f"{asked_by} needs plugins of jax's version {jax.__version__}, found {differing}: {command}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
