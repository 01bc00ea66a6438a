"""`meshwright search`: prints the fastest layouts, and writes the winner as a config. The facts are those of
`trainer.planner.search`.

What the command line sets is fixed; what the config says of its layout is only where it was until now, unless its mesh
is `auto`.
"""

from __future__ import annotations

import dataclasses
import json as json_format
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from trainer.attention import assumption
from trainer.config import Config
from trainer.config_auto import AUTO, SEARCHED, fixed_by
from trainer.config_source import Source, read_file
from trainer.config_yaml import KeyPath, dump, plain
from trainer.errors import ConfigError
from trainer.output_file import check_output, write_output
from trainer.planner.candidates import Candidate
from trainer.planner.compiled import check_installed
from trainer.planner.offloading import Settings, written
from trainer.planner.ranking import MARGIN, Choice
from trainer.planner.search import Found, search
from trainer.planner.words import SECONDS
from trainer.tables import wide_console
from trainer.units import GIB

TOLD = 3
"""Terms of the winner's time that are told, and layouts that were refused."""


def show_search(
    path: Path,
    overrides: Sequence[str],
    gpu: str,
    gpus: int,
    gpus_per_node: int,
    *,
    top: int = 10,
    compiled: int = 0,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Searches the layouts of the config at `path`, and prints the best `top`; writes the winner to `out`, if given.

    Compiles the best `compiled` of them.

    Raises:
        ConfigError: see `Config.load` and `trainer.planner.search.search`.
    """
    if out is not None:
        check_output("--out", out, (".yaml", ".yml"))
        if out.exists() and out.samefile(path):
            raise ConfigError(f"--out {out} is the config itself, whose comments would be lost; name another file")
    if compiled:
        check_installed()
        jax.config.update("jax_platforms", "cpu")  # or jax would look for a driver
    source = Source(str(path), path.parent)
    source.read(read_file(path))
    source.override(overrides)
    if source.tree.get("mesh") != AUTO:
        _without_layout(source)
    given = dict(source.tree)
    config = Config.of(source)
    fixed = fixed_by(config, source.overridden)
    found = search(config, gpu, gpus, gpus_per_node, top, fixed=fixed, compiled=compiled, offload=True, say=_say)
    tree = found.winner.candidate.on(_with_offload(given, found.offload))
    if out is not None:
        write_output("--out", out, _header(found, config.run.name, out, gpu) + dump(tree))
    if json:
        print(json_format.dumps(as_dict(found) | {"config": tree}, indent=2))
        return
    _print(found, wide_console())
    if out is not None:
        print(f"written to {out}; train it with: meshwright train {out}")


def as_dict(found: Found) -> dict[str, Any]:
    """Plain data: seconds of a step, bytes of a GPU."""
    return {
        "gpu": found.cluster.gpu.name,
        "gpus": found.space.gpus,
        "gpus_per_node": found.cluster.gpus_per_node,
        "memory_bytes": found.cluster.gpu.memory_bytes,
        "limit_bytes": found.cluster.gpu.limit_bytes,
        "fixed": sorted(found.space.fixed),
        "offload": found.offload,
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
        "bytes_per_gpu": choice.bytes_per_gpu,
        "known_by": choice.known_by,
        "predicted_bytes_per_gpu": choice.memory.total,
        "compiled_bytes": choice.compiled,
        "overhead_bytes": choice.memory.overhead,
        "fits_surely": choice.fits_surely,
        "seconds": dataclasses.asdict(seconds),
    }


def _say(text: str) -> None:
    """Aside, so that what is printed stays what was found."""
    print(text, file=sys.stderr, flush=True)


def _with_offload(tree: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """A config's tree with the offload that a search has set; what else it has set is part of the layout."""
    offload = {key.removeprefix("offload."): value for key, value in settings.items() if key.startswith("offload.")}
    return {**tree, "offload": {**tree.get("offload", {}), **offload}} if offload else dict(tree)


def _without_layout(source: Source) -> None:
    """Takes away what a file says of its layout, so that it contradicts nothing that is fixed."""

    def is_fixed(path: KeyPath) -> bool:
        return any(path[:size] in source.overridden for size in (1, 2))

    for path in (tuple(key.split(".")) for key in (*SEARCHED, "mesh.virtual_devices")):
        if not is_fixed(path):
            source.remove(path)
    if not is_fixed(("mesh", "pipeline")):  # open, so that settings of stages have an effect
        is_open = -1 in source.tree.get("mesh", {}).values()  # at most one axis can be
        source.put(("mesh", "pipeline"), plain(1 if is_open else -1, ""))
    if source.wrote(("pipeline", "virtual_stages")) and not is_fixed(("pipeline", "schedule")):
        source.put(("pipeline", "schedule"), plain("interleaved_1f1b", ""))


def _print(found: Found, console: Console) -> None:
    fixed = ", ".join(f"{key}={attrgetter(key)(found.space.config)}" for key in sorted(found.space.fixed))
    console.print(f"{_gpus(found)}; fixed: {fixed or 'nothing'}", highlight=False, markup=False)
    console.print(f"attention: {assumption(found.space.config)}", highlight=False, markup=False)
    console.print(_table(found, console))
    reasons = Table.grid(padding=(0, 2))
    for label, text in _reasons(found, "the same command with --compile 1"):
        reasons.add_row(label, text)
    console.print(reasons)


def _gpus(found: Found) -> str:
    return f"{found.space.gpus:,} x {found.cluster.gpu.name}, {found.cluster.gpus_per_node} to a node"


Columns = dict[str, Callable[[Choice], str]]
"""Heading -> what stands below it."""
COMPILED = "compiled GiB"
NUMBERS: Columns = {
    "s/step": lambda choice: f"{choice.seconds:.3g}",
    "tokens/s/GPU": lambda choice: f"{choice.tokens_per_second_per_gpu:,.0f}",
    "MFU": lambda choice: f"{choice.estimate.mfu:.1%}",
    "bubble": lambda choice: f"{choice.estimate.seconds.bubble / choice.seconds:.1%}",
    "GiB": lambda choice: f"{choice.memory.total / GIB:.1f}{' ' if choice.traced else '~'}",
    COMPILED: lambda choice: "-" if choice.compiled is None else f"{choice.bytes_per_gpu / GIB:.1f}",
}
COLUMNS: Columns = {
    "pipeline": lambda choice: f"{choice.candidate.pipeline}",
    "replica": lambda choice: f"{choice.candidate.replica}",
    "data": lambda choice: f"{choice.candidate.data}",
    "tensor": lambda choice: f"{choice.candidate.tensor}",
    "zero": lambda choice: f"{choice.candidate.zero}",
    "schedule": lambda choice: _schedule(choice.candidate),
    "micro": lambda choice: f"{choice.candidate.micro}",
    "recompute": lambda choice: choice.candidate.recompute,
    **NUMBERS,
    "besides matmuls": lambda choice: ", ".join(f"{name} {part:.0%}" for name, part in _terms(choice)[:2]),
}
TEXTS = ("layout", "schedule", "recompute", "besides matmuls")


def _table(found: Found, console: Console) -> Table:
    """A column for each setting, or, where the console is too narrow for that, one line of words for all of them."""
    compared = _columns(found, COLUMNS)
    any_width = console.options.update(max_width=sys.maxsize)
    if console.measure(compared, options=any_width).maximum <= console.width:
        return compared
    return _columns(found, {"layout": lambda choice: _in_words(choice.candidate)} | NUMBERS)


def _columns(found: Found, columns: Columns) -> Table:
    table = Table(
        title="The fastest of each mesh",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    is_compiled = found.winner.compiled is not None
    told = {heading: cell for heading, cell in columns.items() if is_compiled or heading != COMPILED}
    for heading in told:
        is_text = heading in TEXTS
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != "layout", overflow="fold")
    for choice in found.best:
        table.add_row(*(cell(choice) for cell in told.values()))
    return table


def _in_words(candidate: Candidate) -> str:
    mesh = " x ".join(f"{axis} {size}" for axis, size in candidate.mesh.items() if size > 1) or "one device"
    stages = [_schedule(candidate)] if candidate.pipeline > 1 else []
    zero = [f"zero {candidate.zero}"] if candidate.data > 1 else []
    return ", ".join([mesh, *zero, *stages, f"micro {candidate.micro}", f"recompute {candidate.recompute}"])


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


def _reasons(found: Found, compiling: str) -> Iterator[tuple[str, str]]:
    """Of the winner, with labels: what its time goes into, what would make it faster, how sure its memory is, and why
    it is not another. `compiling` is how to compile it."""
    if found.offload:
        yield "offload", f"nothing fits without {written(found.offload)}"
    terms = _terms(found.winner)[:TOLD]
    yield "time", "; ".join(f"{part:.0%} {name} ({SECONDS[name]})" for name, part in terms)
    gains = [f"{faster.gain:+.1%} tokens/s {faster.what}" for faster in found.faster]
    yield "faster", "; ".join(gains) or "by no network, memory or batch twice as large"
    have = found.cluster.gpu.limit_bytes
    traced = sum(choice.traced is not None for choice in found.best)
    told = f"of {have / GIB:.1f} GiB; of the first {traced} from the traced step, ~ by closed forms"
    if found.winner.compiled is None:
        yield "memory", f"{told}; XLA has the last word: {compiling}"
    else:
        yield "memory", f"{told}; compiled: what XLA sets aside, and the plan's overhead"
    if not found.winner.fits_surely:
        yield "margin", f"less than {MARGIN:.0%}, so only compiling can tell whether the winner fits: {compiling}"
    for choice in found.refused[:TOLD]:
        over = choice.bytes_per_gpu - have
        yield (
            "refused",
            f"{choice.candidate}: {choice.known_by}, it takes {choice.bytes_per_gpu / GIB:.1f} GiB, {over / GIB:.1f} "
            f"too much (predicted {choice.memory.total / GIB:.1f})",
        )
    if more := len(found.refused[TOLD:]):
        yield "", f"and {more} more"


def _header(found: Found, name: str, out: Path, gpu: str) -> str:
    """The comment that opens the winner's config."""
    winner, have = found.winner, found.cluster.gpu.limit_bytes
    predicted = (
        f"{winner.seconds:.3g} s per step, {winner.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, MFU "
        f"{winner.estimate.mfu:.1%}, {winner.memory.total / GIB:.1f} of {have / GIB:.1f} GiB"
    )
    if winner.compiled is not None:
        predicted += f", compiled {winner.bytes_per_gpu / GIB:.1f}"
    on = f"--gpu {gpu} --gpus-per-node {found.cluster.gpus_per_node}"
    reasons = [("predicted", predicted), *_reasons(found, f"meshwright plan {out} {on} --compile")]
    if found.best[1:]:
        second = found.best[1]
        reasons.append(("next best", f"{second.candidate}: {second.seconds:.3g} s"))
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
