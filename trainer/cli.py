"""The command line: `meshwright train configs/quickstart.yaml`.

What each command does is in `trainer.commands`. What a user did wrong is one message and exit code 2; a failure of the
machine is 1; a run that would fail the same way again is 3; one that a signal ended, even with a checkpoint, is 128 and
the signal's number (Ctrl-C: 130).
`--debug` shows where an error came from.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trainer.cli_help import Command
from trainer.commands import bench, checkpoints, cluster, layouts, machine, report, runs, training
from trainer.commands.exit_codes import FAILED, PERMANENT, SIGNALLED, WRONG_INPUT
from trainer.errors import ConfigError, PermanentError, TrainingError
from trainer.huge_pages import restart_with_huge_pages
from trainer.jax_start import prepare_jax
from trainer.processes.farewell import farewell
from trainer.processes.own_command import greet
from trainer.processes.parent import end_with_parent
from trainer.streams import open_streams

EXPECTED = (ConfigError, TrainingError, OSError, KeyboardInterrupt)
"""What is said in one message; all else is a bug, and shown as one."""
CODES = {ConfigError: WRONG_INPUT, PermanentError: PERMANENT}
"""What a process ends with after an error; after any other with `FAILED`."""

# In the order in which `meshwright --help` lists them.
COMMANDS: dict[str, Callable[..., None]] = {
    "train": training.train,
    "generate": runs.generate,
    "eval": runs.evaluate,
    "report": report.report,
    "checkpoints": checkpoints.checkpoints,
    "show": layouts.show,
    "schedule": layouts.schedule,
    "plan": layouts.plan,
    "search": layouts.search,
    "launch": cluster.launch,
    "slurm": cluster.slurm,
    "doctor": machine.doctor,
}
BENCHES: dict[str, Callable[..., None]] = {"kernels": bench.kernels, "offload": bench.offload}


class Commands(TyperGroup):
    """Takes --debug before and after the command, and turns expected errors into one message."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:
            args = ["--debug", *[arg for arg in args if arg != "--debug"]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with farewell(partial(_report, debug=ctx.params["debug"])):
                return super().invoke(ctx)
        except EXPECTED as error:
            if isinstance(error, BrokenPipeError):  # as in `meshwright show ... | head`
                raise
            raise typer.Exit(_report(error, ctx.params["debug"])) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
benches = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(benches, name="bench", help="Measure parts of a train step, one at a time.")


@app.callback()
def meshwright(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Train language models too large for one accelerator, in JAX, from one mesh config file."""


for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)
for name, command in BENCHES.items():
    benches.command(name, cls=Command)(command)


def main() -> None:
    """The console entry, and `python -m trainer`."""
    open_streams()
    greet()
    end_with_parent()
    prepare_jax()
    if "train" in sys.argv:
        restart_with_huge_pages()
    app(prog_name="meshwright")


def _report(error: BaseException, debug: bool) -> int:
    """Says on stderr what went wrong; returns the exit code."""
    is_expected = isinstance(error, EXPECTED)
    if debug or not is_expected:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        message, code = "interrupted", SIGNALLED + signal.SIGINT
    else:
        codes = (code for kind, code in CODES.items() if isinstance(error, kind))
        message, code = f"error: {_words(error)}", next(codes, FAILED)
    if is_expected:
        typer.secho(message, fg=typer.colors.RED, err=True)
    return code


def _words(error: BaseException) -> str:
    """The operating system's, without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
