"""`meshwright search`: prints the fastest layouts, and writes the winner as a config. The facts are those of
`trainer.planner.search`.

What the command line sets is fixed; what the config says of its layout is only where it was until now.
"""

from __future__ import annotations

import dataclasses
import json as json_format
import textwrap
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from trainer.config import Config
from trainer.config_source import Source, read_file
from trainer.config_yaml import dump
from trainer.planner.candidates import Candidate, fixed_by
from trainer.planner.search import GIB, Choice, Found, search
from trainer.planner.show_plan import SECONDS

LOOSE = {
    "mesh.pipeline": "-1",
    "mesh.replica": "1",
    "mesh.data": "1",
    "mesh.tensor": "1",
    "mesh.virtual_devices": "null",
    "pipeline.schedule": "interleaved_1f1b",
    "pipeline.virtual_stages": "1",
    "pipeline.layers": "null",
    "pipeline.keep": "residuals",
    "batch.micro": "null",
}
"""What a config's own layout is replaced by, so that it contradicts nothing that is fixed."""
TOLD = 3
"""Terms of a step's time that are told of the winner."""


def show_search(
    path: Path,
    overrides: Sequence[str],
    gpu: str,
    gpus: int,
    gpus_per_node: int,
    top: int,
    json: bool,
    out: Path | None,
) -> None:
    """Searches the layouts of the config at `path`, and prints the best `top`; writes the winner to `out`, if given.

    Raises:
        ConfigError: see `Config.load` and `trainer.planner.search.search`.
    """
    source = Source(str(path), path.parent)
    source.read(read_file(path))
    source.override(overrides)
    config = Config.load(path, [*overrides, *_loosened(source)])
    found = search(config, gpu, gpus, gpus_per_node, top, fixed_by(config, source.overridden))
    tree = found.winner.candidate.on(source.tree)
    if out is not None:
        out.write_text(_header(found, config.run.name, out) + dump(tree), encoding="utf-8")
    if json:
        print(json_format.dumps(as_dict(found) | {"config": tree}, indent=2))
        return
    _print(found, config, Console())
    if out is not None:
        print(f"written to {out}; train it with: meshwright train {out}")


def as_dict(found: Found) -> dict[str, Any]:
    """Plain data: seconds of a step, bytes of a GPU."""
    return {
        "gpu": found.gpu.name,
        "gpus": found.gpus,
        "gpus_per_node": found.gpus_per_node,
        "fixed": sorted(found.fixed),
        "best": [_choice_as_dict(choice) for choice in found.best],
        "refused": [_choice_as_dict(choice) for choice in found.refused],
        "faster": [dataclasses.asdict(faster) for faster in found.faster],
    }


def _choice_as_dict(choice: Choice) -> dict[str, Any]:
    made, seconds = choice.estimate, choice.estimate.seconds
    return dataclasses.asdict(choice.candidate) | {
        "seconds_per_step": seconds.total,
        "tokens_per_second_per_gpu": choice.tokens_per_second_per_gpu,
        "mfu": made.mfu,
        "hfu": made.hfu,
        "bubble": seconds.bubble / seconds.total,
        "bytes_per_gpu": _bytes(choice),
        "traced": choice.plan is not None,
        "seconds": dataclasses.asdict(seconds),
    }


def _loosened(source: Source) -> Iterator[str]:
    """Overrides that take away a config's own layout, as far as the command line does not set it."""
    open_axes = [
        path for path in source.overridden if path[:1] == ("mesh",) and source.tree["mesh"].get(path[-1]) == -1
    ]
    for key, value in LOOSE.items():
        if key == "mesh.pipeline" and open_axes:  # at most one can be
            value = "1"
        path = tuple(key.split("."))
        overridden = any(path[:size] in source.overridden for size in (1, 2))
        if not overridden and (source.wrote(path) or key == "mesh.pipeline"):
            yield f"{key}={value}"


def _bytes(choice: Choice) -> float:
    """Traced, where it was."""
    return choice.plan.memory.total if choice.plan else choice.estimate.bytes_per_gpu


def _print(found: Found, config: Config, console: Console) -> None:
    if not console.is_terminal:
        console.width = 150  # a pipe has no width, and rich would wrap at 80
    fixed = ", ".join(f"{key}={attrgetter(key)(config)}" for key in sorted(found.fixed))
    console.print(f"{_gpus(found)}; fixed: {fixed or 'nothing'}", highlight=False, markup=False)
    console.print(_table(found))
    reasons = Table.grid(padding=(0, 2))
    for label, text in _reasons(found):
        reasons.add_row(label, text)
    console.print(reasons)


def _gpus(found: Found) -> str:
    return f"{found.gpus:,} x {found.gpu.name}, {found.gpus_per_node} to a node"


COLUMNS: dict[str, Callable[[Choice], str]] = {
    "pipeline": lambda choice: f"{choice.candidate.pipeline}",
    "replica": lambda choice: f"{choice.candidate.replica}",
    "data": lambda choice: f"{choice.candidate.data}",
    "tensor": lambda choice: f"{choice.candidate.tensor}",
    "zero": lambda choice: f"{choice.candidate.zero}",
    "schedule": lambda choice: _schedule(choice.candidate),
    "micro": lambda choice: f"{choice.candidate.micro}",
    "recompute": lambda choice: choice.candidate.recompute,
    "s/step": lambda choice: f"{choice.seconds:.3g}",
    "tokens/s/GPU": lambda choice: f"{choice.tokens_per_second_per_gpu:,.0f}",
    "MFU": lambda choice: f"{choice.estimate.mfu:.1%}",
    "bubble": lambda choice: f"{choice.estimate.seconds.bubble / choice.seconds:.1%}",
    "GiB": lambda choice: f"{_bytes(choice) / GIB:.1f}{' ' if choice.plan else '~'}",
    "besides matmuls": lambda choice: ", ".join(f"{name} {part:.0%}" for name, part in _terms(choice)[:2]),
}
TEXTS = ("schedule", "recompute", "besides matmuls")


def _table(found: Found) -> Table:
    table = Table(
        title="The fastest of each mesh",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in COLUMNS:
        table.add_column(heading, justify="left" if heading in TEXTS else "right")
    for choice in found.best:
        table.add_row(*(cell(choice) for cell in COLUMNS.values()))
    return table


def _schedule(candidate: Candidate) -> str:
    if candidate.pipeline == 1:
        return "-"
    chunks = f" x{candidate.virtual_stages}" if candidate.virtual_stages > 1 else ""
    keep = ", keep inputs" if candidate.keep == "inputs" else ""
    head = ", head last" if candidate.head == "last" else ""
    return candidate.schedule + chunks + keep + head


def _terms(choice: Choice) -> list[tuple[str, float]]:
    """What a step's time goes into besides matmuls, as parts of it, the largest first."""
    seconds = choice.estimate.seconds
    parts = ((name, value / seconds.total) for name, value in dataclasses.asdict(seconds).items())
    return sorted((part for part in parts if part[0] != "matmul" and part[1] > 0), key=lambda part: -part[1])


def _reasons(found: Found) -> Iterator[tuple[str, str]]:
    """Of the winner, with labels: what its time goes into, what would make it faster, and how sure its memory is."""
    terms = _terms(found.winner)[:TOLD]
    yield "time", "; ".join(f"{part:.0%} {name} ({SECONDS[name]})" for name, part in terms)
    gains = [f"{faster.gain:+.1%} tokens/s {faster.what}" for faster in found.faster]
    yield "faster", "; ".join(gains) or "by no network, memory or batch twice as large"
    traced = sum(choice.plan is not None for choice in found.best)
    refused = f"; by it, {len(found.refused)} that seemed faster do not fit" if found.refused else ""
    have = f"{found.gpu.memory_bytes / GIB:.1f} GiB"
    yield "memory", f"of {have}; of the first {traced} from the traced step, ~ by closed forms{refused}"


def _header(found: Found, name: str, out: Path) -> str:
    """The comment that opens the winner's config."""
    winner = found.winner
    predicted = (
        f"{winner.seconds:.3g} s per step, {winner.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, MFU "
        f"{winner.estimate.mfu:.1%}, {_bytes(winner) / GIB:.1f} of {found.gpu.memory_bytes / GIB:.1f} GiB"
    )
    reasons = [("predicted", predicted), *_reasons(found)]
    if found.best[1:]:
        second = found.best[1]
        mesh = " x ".join(f"{axis} {size}" for axis, size in second.candidate.mesh.items())
        reasons.append(("next best", f"{mesh}, {second.seconds:.3g} s"))
    wrapped = (
        textwrap.wrap(f"{label:<11}{text}", 117, subsequent_indent=" " * 11, break_long_words=False)
        for label, text in reasons
    )
    lines = [
        f"{name} on {_gpus(found)}: the fastest layout that meshwright search found.",
        "",
        f"  meshwright train {out}",
        "",
        *(line for text in wrapped for line in text),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
