"""What XLA is told on each kind of GPU, and why: the one place where such settings stand.

They are options of the train step's own compilation and touch nothing else in the process. What the installed XLA does
not know is left out; in XLA_FLAGS it would end the process. Knows nothing of models or meshes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True)
class Flag:
    """One of XLA's, by its name without the dashes."""

    name: str
    value: bool | str
    kinds: tuple[str, ...]
    """Parts of the names of the devices that it is for, as `jax.Device.device_kind` has them."""
    because: str
    """What `python -m benchmarks.plan_overlap` measured, or who says so."""
    in_parts: bool = False
    """Only where layers work at several parts of a micro-batch."""


FLAGS = (
    Flag(
        "xla_gpu_enable_latency_hiding_scheduler",
        True,
        ("A100", "H100", "H200", "B200"),
        "puts work between the start and the end of a collective; XLA itself does so on Hopper and Blackwell only, "
        "and on an A100 hides 7% of what ZeRO 3 sends without it, 56% with it",
    ),
    Flag(
        "xla_gpu_experimental_parallel_collective_overlap_limit",
        "8",
        ("A100",),
        "so many collectives may wait for their turn while others are on their way: of what ZeRO 3 sends 93% is "
        "hidden, instead of 56% with one at a time",
    ),
    Flag(
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
        str(8 * 2**20),
        ("A100", "H100", "H200", "B200"),
        "what two parts of a micro-batch send is not combined into one, which would wait for both: with flash "
        "attention 64% of what tensor parallelism sends is hidden instead of 41% on an H100, of 50% on an A100",
        in_parts=True,
    ),
)


@dataclass(frozen=True)
class GpuSettings:
    """What of `FLAGS` is set for a device, and what is to be said of the rest."""

    flags: tuple[Flag, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, bool | str]:
        """For the `compiler_options` of `jax.jit`."""
        return {flag.name: flag.value for flag in self.flags}


def gpu_settings(
    device: jax.Device, in_parts: bool = False, environment: Mapping[str, str] = os.environ
) -> GpuSettings:
    """Those for a device, which need not be there. What the user sets in XLA_FLAGS is the user's.

    Args:
        in_parts: layers work at several parts of a micro-batch side by side (`batch.parts`).
    """
    flags, notes = [], []
    theirs = {*_names(environment.get("XLA_FLAGS", ""))}
    for flag in FLAGS:
        if not any(kind in device.device_kind for kind in flag.kinds) or (flag.in_parts and not in_parts):
            continue
        if flag.name in theirs:
            notes.append(f"{flag.name} is as XLA_FLAGS has it")
        elif objection := _objection(device, flag.name, flag.value):
            notes.append(f"{flag.name} is left out, this XLA does not take it: {objection}")
        else:
            flags.append(flag)
    return GpuSettings(tuple(flags), tuple(notes))


def _names(flags: str) -> Iterator[str]:
    """Of the flags in XLA_FLAGS, which may also be the path of a file that has them."""
    path = Path(flags)
    if flags and not flags.lstrip().startswith("-") and path.is_file():
        flags = path.read_text(encoding="utf-8")
    for flag in flags.split():
        yield flag.lstrip("-").partition("=")[0]


@cache
def _objection(device: jax.Device, name: str, value: bool | str) -> str | None:
    """What the XLA that compiles for a device has against a flag; None where it takes it. Compiles next to nothing."""
    mesh = Mesh(np.array([device]), ("one",))
    nothing = jax.ShapeDtypeStruct((), np.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh), jax.default_device(device):
        try:
            jax.jit(lambda x: x).lower(nothing).compile(compiler_options={name: value})
        except JaxRuntimeError as error:
            return str(error).splitlines()[0]
    return None
