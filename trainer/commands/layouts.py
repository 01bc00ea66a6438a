"""Commands that show, plan and search layouts, without a device: `meshwright show`, `schedule`, `plan`, `search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.arguments import ConfigFile, Overrides, load
from trainer.errors import ConfigError
from trainer.paths import argument


def show(
    config: ConfigFile,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="For programs instead of people.")] = False,
) -> None:
    """Show what a config would train, and on what.

    Example: meshwright show configs/llama3-8b.yaml mesh.tensor=4
    """
    loaded = load(config, overrides)
    from trainer.show import show

    show(loaded, json=json)


def schedule(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write it too: a picture (.svg, .png), or its table (.csv).",
            callback=argument,
        ),
    ] = None,
) -> None:
    """Draw which stage does what when, and what it costs.

    Example: meshwright schedule configs/bloom-176b.yaml pipeline.schedule=gpipe
    """
    loaded = load(config, overrides)
    from trainer.show_schedule import show_schedule

    show_schedule(loaded, out)


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="A YAML config; none with --published.",
            callback=argument,
        ),
    ] = None,
    overrides: Overrides = None,
    *,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="KIND",
            help="h100 unless given; a100, b200, rtx-4090, l40s and others, or a YAML file of yours.",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=1, help="Unless given, as many as the mesh has devices.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="N", min=1, help="That NVLink joins.")] = 8,
    tokens: Annotated[
        float | None,
        typer.Option("--tokens", metavar="N", min=1, max=1e18, help="Also days and GPU-hours for so many: 3e11."),
    ] = None,
    storage: Annotated[
        float | None,
        typer.Option(
            "--storage", metavar="GB/S", min=0.001, max=1e6, help="Also how long a checkpoint takes to save at it."
        ),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Also what XLA, which compiles it, sets aside; needs the extra `plan`.")
    ] = False,
    published: Annotated[
        Path | None,
        typer.Option(
            "--published", metavar="FILE.csv", help="Predict these runs of others instead.", callback=argument
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write it too, as one page with pictures.",
            callback=argument,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs instead of people.")] = False,
) -> None:
    """Plan a run on GPUs that are not there: does it fit, what is sent, how long it takes.

    Example: meshwright plan configs/bloom-176b.yaml --gpu a100 --tokens 366e9
    """
    if (config is None) == (published is None):
        raise ConfigError("give a CONFIG to plan, or --published FILE.csv with runs to predict")
    of_config = {"--html": html, "--tokens": tokens, "--storage": storage, "--compile": compiled, "--gpus": gpus}
    given = [option for option, value in of_config.items() if value]
    if published is not None and given:
        raise ConfigError(f"{', '.join(given)}: of a CONFIG; leave it out with --published")
    if published is not None:
        from trainer.planner.show_published import show_published

        show_published(published, gpu, gpus_per_node, json)
    elif config is not None:
        loaded = load(config, overrides)
        from trainer.planner.show_plan import show_plan

        at = storage and storage * 1e9
        show_plan(
            loaded,
            "h100" if gpu is None else gpu,
            gpus,
            gpus_per_node,
            tokens=tokens,
            storage=at,
            json=json,
            compiled=compiled,
            html=html,
        )


def search(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="How many there are.")],
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", metavar="KIND", help="h100, a100, b200, rtx-4090, l40s and others, or a YAML file of yours."
        ),
    ] = "h100",
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="N", min=1, help="That NVLink joins.")] = 8,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="How many meshes to show.")] = 10,
    compiled: Annotated[
        int | None,
        typer.Option("--compile", metavar="K", min=1, help="Let XLA compile the best K; needs the extra `plan`."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs instead of people.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the config with the fastest layout.",
            callback=argument,
        ),
    ] = None,
) -> None:
    """Search the fastest mesh, ZeRO stage, schedule, micro-batch and recomputation.

    What KEY=VALUE sets is kept as it is. What the config says of its layout is not.

    Example: meshwright search configs/bloom-176b.yaml --gpus 384 --gpu a100 --out bloom.yaml
    """
    from trainer.planner.show_search import show_search

    show_search(config, overrides or (), gpu, gpus, gpus_per_node, top=top, compiled=compiled or 0, json=json, out=out)
