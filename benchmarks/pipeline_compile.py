"""530 billion parameters on 2,240 H100s that are not there: the step of configs/mt-nlg-530b.yaml, compiled for them.

    python -m benchmarks.pipeline_compile [OVERRIDE...]    without overrides, a table of what a stage may keep

Pipeline 35 x data 8 x tensor 8, 240 micro-batches. Prints seconds, the bytes that XLA sets aside on each GPU, how often
a tick moves a whole array of the ring, and what is scheduled while activations and cotangents travel. Exits with 1
where a step takes more than two minutes. Needs no GPU: XLA compiles for a described one, with jax's CUDA plugin and
NVIDIA's assembler, as `pip install "jax[cuda13]"` has them.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from benchmarks.common import show
from benchmarks.pipeline_program import TRAVELLERS, Transit, moved_each_tick, ring, transits
from sharding.mesh import make_mesh
from trainer.config import Config
from trainer.pipeline import make_schedule
from trainer.program import Program

Options = dict[str, Any]
"""Compiler options of XLA."""
CONFIG = Path(__file__).parents[1] / "configs" / "mt-nlg-530b.yaml"
# XLA's default is one collective at a time, those inside of a unit included, so that none travels while a unit of a
# tensor-parallel stage is at work; and it moves an activation's journey to the beginning of the tick that waits for it.
OVERLAPPING: Options = {
    "xla_gpu_experimental_parallel_collective_overlap_limit": 4,
    "xla_disable_hlo_passes": "collective-permute-motion",
}
OPTIONS: dict[str, Options] = {"XLA's own": {}, "overlapping": OVERLAPPING}
CHOICES = [
    (["recompute=full"], "XLA's own"),
    (["recompute=full"], "overlapping"),
    (["recompute=full", "pipeline.head=last"], "XLA's own"),
    (["recompute=full", "pipeline.head=last"], "overlapping"),
    (["recompute=none", "pipeline.keep=inputs"], "XLA's own"),
    (["recompute=none", "pipeline.keep=inputs", "pipeline.head=last"], "XLA's own"),
    (["recompute=selective"], "XLA's own"),
]
ALLOWED_SECONDS = 120
GPUS_OF_A_HOST = 8
GIB = 2**30
# By XLA's own description of an H100 SXM (openxla/xla, xla/backends/gpu/target_config/specs/h100_sxm.txtpb).
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84942979072
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
}
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclass(frozen=True)
class Compiled:
    """Of one config; bytes are those of one GPU."""

    config: Config
    options: str
    """By their name in OPTIONS."""
    seconds: dict[str, float]
    arguments: int
    temporary: int
    ring: int
    moved: int
    """Instructions that move a whole array of the ring in each tick."""
    transits: list[Transit]


def absent_gpus(number: int) -> list[jax.Device]:
    """H100s in hosts of eight, that can be compiled for.

    Raises:
        SystemExit: jax cannot compile for GPUs here.
    """
    hosts = -(-number // GPUS_OF_A_HOST)
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name="h100", target_config=H100, topology=f"1x{hosts}x{GPUS_OF_A_HOST}"
        )
    except NotImplementedError:
        raise SystemExit(
            'error: this jax cannot compile for GPUs, as its CUDA plugin is not installed: pip install "jax[cuda13]" '
            "into an environment of its own, and run this there; no GPU is needed"
        ) from None
    return list(topology.devices)[:number]


def compile_step(config: Config, options: str) -> Compiled:
    """The step of a config, compiled for as many absent GPUs as it asks for."""
    program = Program(config, make_mesh(config.mesh, absent_gpus(config.mesh.num_devices or 0)))
    seconds, start = {}, time.perf_counter()
    with jax.set_mesh(program.mesh), jax.default_device(program.mesh.devices.flat[0]):
        traced = program.step.trace(program.abstract_state(), program.abstract_batch())
        seconds["trace"], start = time.perf_counter() - start, time.perf_counter()
        lowered = traced.lower()
        seconds["lower"], start = time.perf_counter() - start, time.perf_counter()
        compiled = lowered.compile(compiler_options=OPTIONS[options])
        seconds["compile"] = time.perf_counter() - start
    slots = ring(traced.jaxpr, make_schedule(config, config.mesh.sizes).num_slots)
    memory, text = compiled.memory_analysis(), compiled.as_text()
    return Compiled(
        config,
        options,
        seconds,
        arguments=memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        ring=sum(array.size * array.dtype.itemsize for array in slots),
        moved=moved_each_tick(text, slots),
        transits=transits(text),
    )


def _choice(compiled: Compiled) -> list[str]:
    config = compiled.config
    return [config.pipeline.keep, config.recompute.policy, config.pipeline.head, compiled.options]


def _cost(compiled: Compiled) -> list[str]:
    seconds = [f"{seconds:.1f}" for seconds in compiled.seconds.values()]
    sizes = compiled.arguments, compiled.temporary, compiled.arguments + compiled.temporary, compiled.ring
    return [*_choice(compiled), *seconds, *(f"{size / GIB:.1f}" for size in sizes), str(compiled.moved)]


def _overlap(compiled: Compiled) -> list[str]:
    """Of the steady ticks, which are most."""
    steady = {transit.what: transit for transit in compiled.transits if transit.phase == "steady"}
    found = [steady.get(what) for what in TRAVELLERS]
    return [*_choice(compiled), *(f"{transit.units} and {transit.fusions}" if transit else "-" for transit in found)]


def main(overrides: list[str]) -> int:
    """Prints the tables; how many steps took too long to compile."""
    jax.config.update("jax_platforms", "cpu")
    choices = [(overrides, options) for options in OPTIONS] if overrides else CHOICES
    found = [compile_step(Config.load(CONFIG, choice), options) for choice, options in choices]
    config, columns = found[0].config, ["keep", "recompute", "head", "options"]
    show(
        f"{CONFIG.stem} for {config.mesh.num_devices:,} H100s: seconds, and GiB on each",
        [*columns, *found[0].seconds, "state", "temporary", "in all", "ring", "moved"],
        [_cost(compiled) for compiled in found],
    )
    show(
        "Units and fusions while it travels, in a steady tick",
        [*columns, *TRAVELLERS],
        [_overlap(compiled) for compiled in found],
    )
    print("overlapping:", *(f"{name}={value}" for name, value in OVERLAPPING.items()))
    late = sum(sum(compiled.seconds.values()) > ALLOWED_SECONDS for compiled in found)
    print(f"{late} took more than {ALLOWED_SECONDS} seconds." if late else f"All within {ALLOWED_SECONDS} seconds.")
    return late


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
