"""Memory of a pipeline does not grow with the number of micro-batches: what XLA sets aside for a step, on each device.

    python -m benchmarks.pipeline_memory

The train step of a small Llama on four stages, compiled from shapes for virtual CPU devices, in float32 (XLA's CPU
backend widens bfloat16, which moves the whole ring in each tick). The batch is an argument, and not counted, but for
the weights of its tokens: 4 bytes each, divided by their number. Exits with 1 where memory grows by more than 1 % from
8 to 128 micro-batches, but for gpipe, or where a tick moves the whole ring. Takes two minutes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import jax

from benchmarks.common import show
from benchmarks.equality import QUICK
from benchmarks.pipeline_program import moved_each_tick, ring
from sharding.mesh import make_mesh
from trainer.config import Config
from trainer.pipeline import make_schedule
from trainer.program import Program

P = 4
MICRO, SEQUENCE = 2, 128
MICRO_BATCHES = (8, 32, 128)
ALLOWED = 0.01
GPIPE = "gpipe"


@dataclass(frozen=True)
class Case:
    """Two layers for each (virtual) stage."""

    schedule: str
    virtual: int
    keep: str

    def config(self, micro_batches: int) -> Config:
        model = {"layers": 2 * P * self.virtual, "hidden": 128, "heads": 4, "vocab": 2048, "context": SEQUENCE}
        return Config.from_dict(
            {
                "model": model,
                "mesh": {"pipeline": P},
                "pipeline": {"schedule": self.schedule, "virtual_stages": self.virtual, "keep": self.keep},
                "batch": {"global": MICRO * micro_batches, "micro": MICRO, "sequence": SEQUENCE},
            }
        )


@dataclass(frozen=True)
class Measured:
    """Bytes on one device."""

    ring: int
    temporary: int
    moved: int
    """Instructions that move a whole array of the ring in each tick."""


CASES = [
    Case("1f1b", 1, "residuals"),
    Case("1f1b", 1, "inputs"),
    Case("interleaved_1f1b", 2, "residuals"),
    Case("interleaved_1f1b", 2, "inputs"),
    Case(GPIPE, 1, "residuals"),
]


def measure(config: Config) -> Measured:
    """The step of a config, compiled and not run."""
    program = Program(config, make_mesh(config.mesh, jax.devices()[: config.mesh.num_devices]))
    traced = program.step.trace(program.abstract_state(), program.abstract_batch())
    slots = ring(traced.jaxpr, make_schedule(config, config.mesh.sizes).num_slots)
    compiled = traced.lower().compile(compiler_options=QUICK)
    memory = compiled.memory_analysis()
    return Measured(
        ring=sum(array.size * array.dtype.itemsize for array in slots),
        temporary=memory.temp_size_in_bytes,
        moved=moved_each_tick(compiled.as_text(), slots),
    )


def growth(fewest: Measured, most: Measured) -> float:
    return most.temporary / fewest.temporary - 1


def main() -> int:
    """Prints the table; how many cases fail."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", P)
    tokens = (MICRO_BATCHES[-1] - MICRO_BATCHES[0]) * MICRO * SEQUENCE
    rows, failed = [], 0
    for case in CASES:
        found = [measure(case.config(micro_batches)) for micro_batches in MICRO_BATCHES]
        more, moved = growth(found[0], found[-1]), sum(one.moved for one in found)
        failed += (more > ALLOWED and case.schedule != GPIPE) or moved > 0
        sizes = [f"{one.temporary / 2**20:.2f}" for one in found]
        each = f"{(found[-1].temporary - found[0].temporary) / tokens:.1f}"
        kept = f"{found[0].ring / 2**20:.2f}"
        rows.append([case.schedule, str(case.virtual), case.keep, kept, *sizes, f"{more:.2%}", each, str(moved)])
    columns = ["schedule", "V", "keep", "ring, M=8", *(f"M={n}" for n in MICRO_BATCHES)]
    show(
        f"MiB on each of {P} devices: the ring, and all that is temporary, for M micro-batches",
        [*columns, "growth", "bytes a token", "ring moved"],
        rows,
    )
    print(f"{failed} cases fail." if failed else "Memory is flat, and no tick moves the ring.")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
