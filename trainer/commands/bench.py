"""Commands that measure a part of a train step: `meshwright bench kernels` and `meshwright bench offload`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.exit_codes import FAILED
from trainer.paths import argument


def kernels(
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="KIND",
            help="Compile for it instead: h100 (unless given, where no GPU is), a100, b200 and others, or a YAML file "
            "of yours; needs the extra `plan`.",
        ),
    ] = None,
) -> None:
    """Measure attention, or compile its kernels for a GPU that is not there.

    With a GPU: TFLOP/s of each implementation, beside its roofline. Without: registers, memory, occupancy, rooflines.

    Example: meshwright bench kernels --gpu a100
    """
    from trainer.bench.show_kernels import show_kernels

    if not show_kernels(gpu):
        raise typer.Exit(FAILED)


def offload(
    path: Annotated[
        Path | None,
        typer.Option(
            "--path",
            metavar="DIR",
            help="Also a disk, by a file of 768 MiB there that is removed again.",
            callback=argument,
        ),
    ] = None,
) -> None:
    """Measure what an offloaded optimizer takes on this machine, and propose settings.

    Updates in host memory, copies to and from the devices, and what a disk adds: parameters a second.

    Example: meshwright bench offload --path .
    """
    from trainer.bench.show_offload import show_offload

    show_offload(path)
