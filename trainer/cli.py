"""The command line: `meshwright train configs/quickstart.yaml`.

Commands import what they need when they run, so that help is instant. What a user did wrong is one message
and exit code 2; a failure of the machine is 1; a run that a signal ended, even with a checkpoint, is 128 and
the signal's number (Ctrl-C: 130). `--debug` shows where an error came from.
"""

from __future__ import annotations

import re
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from trainer.cli_help import Command
from trainer.errors import ConfigError
from trainer.huge_pages import restart_with_huge_pages

if TYPE_CHECKING:
    from trainer.config import Config

FAILED, WRONG_INPUT, SIGNALLED = 1, 2, 128


class Commands(TyperGroup):
    """Takes --debug before and after the command, and turns expected errors into one message."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:
            args = ["--debug", *[arg for arg in args if arg != "--debug"]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ConfigError, OSError, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError):  # as in `meshwright show ... | head`
                raise
            if ctx.params["debug"]:
                traceback.print_exc()
            raise typer.Exit(_report(error)) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench", help="Measure parts of a train step, one at a time.")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML config, such as configs/quickstart.yaml.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, such as runs/quickstart.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE ...", help="Settings over the config's, such as zero.stage=3."),
]


@app.callback()
def meshwright(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Train language models too large for one accelerator, in JAX, from one mesh config file."""


@app.command(cls=Command)
def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train a model, or go on with a run that was stopped.

    Example: meshwright train configs/quickstart.yaml train.steps=50 zero.stage=3
    """
    loaded = _load(config, overrides)
    from trainer.trainer import Trainer

    trainer = Trainer(loaded)
    trainer.train()
    if trainer.stopped_by is not None:
        raise typer.Exit(SIGNALLED + trainer.stopped_by)


@app.command(cls=Command)
def generate(
    run: RunFolder,
    overrides: Overrides = None,
    *,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text to go on from.")],
    max_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Stop after this many tokens, or at the model's context.")
    ] = 100,
    temperature: Annotated[float, typer.Option(metavar="T", min=0, help="0 takes the likeliest token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(metavar="K", min=1, help="Choose among the K likeliest.")] = None,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="The same seed gives the same text.")] = 0,
) -> None:
    """Write text with a trained model.

    Example: meshwright generate runs/quickstart --prompt "def "
    """
    from trainer.trainer import Trainer

    trainer = Trainer.from_run(run, overrides or ())
    text = trainer.generate(prompt, max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed)
    print(_harmless(text) if sys.stdout.isatty() else text)


@app.command("eval", cls=Command)
def evaluate(
    run: RunFolder,
    overrides: Overrides = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also what unigrams and xz reach.")] = False,
) -> None:
    """Measure a trained model on its held-out text.

    With another data.path=..., on all documents of that path, in the run's own tokens. train.eval_batches bounds both.

    Example: meshwright eval runs/quickstart train.eval_batches=32
    """
    from trainer.trainer import Trainer

    trainer = Trainer.from_run(run, overrides or ())
    for name, value in (trainer.evaluate() | (trainer.baselines() if baselines else {})).items():
        typer.echo(f"{name:<18} {value:,}" if isinstance(value, int) else f"{name:<18} {value:.4f}")


@app.command(cls=Command)
def show(
    config: ConfigFile,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="For programs instead of people.")] = False,
) -> None:
    """Show what a config would train, and on what.

    Example: meshwright show configs/llama3-8b.yaml mesh.tensor=4
    """
    loaded = _load(config, overrides)
    from trainer.show import show

    show(loaded, json=json)


@app.command(cls=Command)
def schedule(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write it too: a picture (.svg, .png), or its table (.csv)."),
    ] = None,
) -> None:
    """Draw which stage does what when, and what it costs.

    Example: meshwright schedule configs/bloom-176b.yaml pipeline.schedule=gpipe
    """
    loaded = _load(config, overrides)
    from trainer.show_schedule import show_schedule

    show_schedule(loaded, out)


@app.command(cls=Command)
def plan(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="A YAML config; none with --published.")
    ] = None,
    overrides: Overrides = None,
    *,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="KIND", help="a100, h100 (unless given), h200, b200, or a YAML file of yours."),
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
            "--published", metavar="FILE.csv", exists=True, dir_okay=False, help="Predict these runs of others instead."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it too, as one page with pictures.")
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
        loaded = _load(config, overrides)
        from trainer.planner.show_plan import show_plan

        at = storage and storage * 1e9
        show_plan(
            loaded,
            gpu or "h100",
            gpus,
            gpus_per_node,
            tokens=tokens,
            storage=at,
            json=json,
            compiled=compiled,
            html=html,
        )


@app.command(cls=Command)
def search(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="How many there are.")],
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="KIND", help="a100, h100, h200, b200, or a YAML file that describes one.")
    ] = "h100",
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="N", min=1, help="That NVLink joins.")] = 8,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="How many meshes to show.")] = 10,
    compiled: Annotated[
        int | None,
        typer.Option("--compile", metavar="K", min=1, help="Let XLA compile the best K; needs the extra `plan`."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs instead of people.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the config with the fastest layout.")
    ] = None,
) -> None:
    """Search the fastest mesh, ZeRO stage, schedule, micro-batch and recomputation.

    What KEY=VALUE sets is kept as it is. What the config says of its layout is not.

    Example: meshwright search configs/bloom-176b.yaml --gpus 384 --gpu a100 --out bloom.yaml
    """
    from trainer.planner.show_search import show_search

    show_search(config, overrides or (), gpu, gpus, gpus_per_node, top=top, compiled=compiled or 0, json=json, out=out)


@bench.command(cls=Command)
def kernels(
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="KIND",
            help="Compile for it instead: a100, h100 (unless given, where no GPU is), h200, b200, or a YAML file of "
            "yours; needs the extra `plan`.",
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


@bench.command(cls=Command)
def offload(
    path: Annotated[
        Path | None,
        typer.Option("--path", metavar="DIR", help="Also a disk, by a file of 768 MiB there that is removed again."),
    ] = None,
) -> None:
    """Measure what an offloaded optimizer takes on this machine, and propose settings.

    Updates in host memory, copies to and from the devices, and what a disk adds: parameters a second.

    Example: meshwright bench offload --path .
    """
    from trainer.bench.show_offload import show_offload

    show_offload(path)


@app.command(cls=Command)
def doctor() -> None:
    """Check that this machine can train, and say what is missing.

    Example: meshwright doctor
    """
    from trainer.doctor import doctor

    raise typer.Exit(doctor())


def main() -> None:
    """The console entry, and `python -m trainer`."""
    if "train" in sys.argv:
        restart_with_huge_pages()
    app(prog_name="meshwright")


def _load(path: Path, overrides: list[str] | None) -> Config:
    """Before anything else is imported, so that a wrong config is said at once."""
    from trainer.config import Config

    return Config.load(path, overrides or ())


def _harmless(text: str) -> str:
    """What a model writes may hold any character; those that would steer the terminal are written out, as \\x1b."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


def _report(error: BaseException) -> int:
    """Says on stderr what went wrong; returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        message, code = "interrupted", SIGNALLED + signal.SIGINT
    else:
        message, code = f"error: {error}", WRONG_INPUT if isinstance(error, ConfigError) else FAILED
    typer.secho(message, fg=typer.colors.RED, err=True)
    return code
