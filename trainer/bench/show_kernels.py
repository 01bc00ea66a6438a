"""`meshwright bench kernels`: attention on the GPU that is there, or what its kernels take of one that is not."""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from trainer.bench.absent import compiled_kernels, compiled_table, roofline_table
from trainer.bench.shapes import SHAPES
from trainer.bench.speed import OUT_OF_MEMORY, attention_speeds, speed_table
from trainer.planner.compiled import check_installed
from trainer.planner.gpu import described, load
from trainer.tables import wide_console

LENGTH = max(shape.sequence for shape in SHAPES)
HEAD_DIMS = sorted({shape.head_dim for shape in SHAPES})


def show_kernels(kind: str | None) -> bool:
    """Prints the tables.

    Args:
        kind: of the GPU to compile for, as `trainer.planner.gpu.load` takes it; None measures the GPU that is there,
            or compiles for an h100 where none is.

    Returns:
        Whether all kernels ran, or compiled. Memory that is not enough is no failure: the reference takes much.

    Raises:
        ConfigError: there is no such GPU, or what compiling takes is not installed.
    """
    device = _gpu() if kind is None else None
    return _compiled(kind or "h100") if device is None else _measured(device)


def _measured(device: jax.Device) -> bool:
    speeds, gpu = list(attention_speeds(device, SHAPES, say=_say)), described(device.device_kind)
    unknown = "; its roofline is not known" if gpu is None else ""
    console = wide_console()
    console.print(f"{device.device_kind}, jax {jax.__version__}{unknown}", highlight=False)
    console.print(speed_table(speeds, gpu))
    return all(speed.problem in ("", OUT_OF_MEMORY) for speed in speeds)


def _compiled(kind: str) -> bool:
    gpu = load(kind)
    gpu.require_target()
    check_installed("without a GPU of its kind, bench kernels")
    jax.config.update("jax_platforms", "cpu")  # takes no memory of a GPU, and waits for no driver
    name = str(Path(kind).absolute()) if Path(kind).is_file() else gpu.name
    kernels = list(compiled_kernels(name, gpu, HEAD_DIMS, LENGTH, _say))
    console = wide_console()
    console.print(compiled_table(gpu, kernels, LENGTH))
    console.print(roofline_table(gpu, SHAPES))
    return not any(report.error for _, report in kernels)


def _gpu() -> jax.Device | None:
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        return None


def _say(text: str) -> None:
    """What comes next, for whoever waits."""
    print(text, file=sys.stderr, flush=True)
