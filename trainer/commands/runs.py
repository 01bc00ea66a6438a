"""Commands about a run that has trained: `meshwright generate` and `meshwright eval`."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from trainer.commands.arguments import Overrides, RunFolder
from trainer.processes.membership import is_first, join_others


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
    join_others()
    from trainer.trainer import Trainer

    trainer = Trainer.from_run(run, overrides or ())
    text = trainer.generate(prompt, max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed)
    if is_first():
        print(_harmless(text) if sys.stdout.isatty() else text)


def evaluate(
    run: RunFolder,
    overrides: Overrides = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also what unigrams and xz reach.")] = False,
) -> None:
    """Measure a trained model on its held-out text.

    With another data.path=..., on all documents of that path, in the run's own tokens. train.eval_batches bounds both.

    Example: meshwright eval runs/quickstart train.eval_batches=32
    """
    join_others()
    from trainer.trainer import Trainer

    trainer = Trainer.from_run(run, overrides or ())
    measured = trainer.evaluate() | (trainer.baselines() if baselines else {})
    if is_first():
        typer.echo(trainer.what_is_measured(), err=True)
    for name, value in measured.items() if is_first() else ():
        typer.echo(f"{name:<18} {value:,}" if isinstance(value, int) else f"{name:<18} {value:.4f}")


def _harmless(text: str) -> str:
    """What a model writes may hold any character; those that would steer the terminal are written out, as \\x1b."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)
