"""`meshwright show`: prints what a config would train, and on what. The facts are those of `trainer.description`."""

from __future__ import annotations

import dataclasses
import json as json_format
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from sharding.mesh import num_groups
from trainer import config_yaml
from trainer.config import Config
from trainer.data.prepare import require_room_for_bytes
from trainer.description import Description, Parameter, Stages, describe
from trainer.tables import make_table, wide_console
from trainer.units import binary
from trainer.wire import Transfer

MEANING = {
    "weights": "copies that layers compute with, held for the whole step",
    "gradients": "float32, summed over the micro-batches",
    "optimizer": "float32: master weights and moments",
    "gathered": "weights of the part at work (a layer, the embedding or the head), under ZeRO 3; from the host, with "
    "gradients on their way there",
    "activations": "saved for the backward pass, of the micro-batches alive; with stages, their messages too",
}
OFF_DEVICE = {
    "optimizer": "in host memory: float32 master weights and moments",
    "weights": "in host memory, pinned: of the layers, which fetch them",
    "gradients": "in host memory, pinned: float32, of the layers",
    "activations": "in host memory, pinned: saved for the backward pass",
    "staging": "in host memory: what is on its way to the update and back",
    "nvme": "in files: float32 master weights and moments; of layers there, weights and gradients",
}
TIERS = {"host": "in host memory", "nvme": "on NVMe"}
NOT_COUNTED = (
    "Not counted: what only the layer at work needs, a chunk of logits and the head's gradient, the gradients of one "
    "micro-batch before they are added up, and what XLA keeps for itself."
)


def show(config: Config, json: bool = False) -> None:
    """Prints `describe(config)`: tables for people, or JSON.

    Raises:
        ConfigError: the model or the batch does not fit the mesh, or the vocabulary the text.
    """
    require_room_for_bytes(config.data, config.model.vocab)
    description = describe(config)
    if json:
        print(json_format.dumps(dataclasses.asdict(description), indent=2))
    else:
        _print(description, wide_console())


def _print(description: Description, console: Console) -> None:
    console.print(config_yaml.dump(description.config), highlight=False, markup=False)
    for table in (
        _summary(description),
        _parameters(description),
        _saved(description),
        *_memory(description),
        _sent(description.wire),
    ):
        console.print(table)
    console.print(NOT_COUNTED, style="dim", highlight=False)


def _summary(d: Description) -> Table:
    groups = num_groups(d.mesh)
    mesh = " x ".join(f"{axis} {size}" for axis, size in d.mesh.items() if size > 1)
    sequences, length = d.config["batch"]["global"], d.config["batch"]["sequence"]
    flops = f"{d.model_flops_per_token:.4g} a token; causal attention halved, recompute not counted"
    table = make_table("What would be trained", ["", ""])
    table.add_row("devices", f"{d.devices:,} = {mesh}" if mesh else "1")
    if d.assumed:
        table.add_row("", d.assumed)
    table.add_row("parameters", f"{d.num_parameters:,}")
    table.add_row("a step", f"{d.tokens_per_step:,} tokens: {sequences:,} sequences of {length:,}")
    table.add_row("", f"micro batch {d.micro_batch} x accumulation {d.accumulation} x {groups} groups of devices")
    table.add_row("model FLOPs", flops)
    table.add_row("attention", d.attention)
    if d.pipeline:
        for name, text in _pipeline(d.pipeline):
            table.add_row(name, text)
    return table


def _pipeline(stages: Stages) -> Iterator[tuple[str, str]]:
    layers = ", ".join(map(str, stages.layers)) if len({*stages.layers}) > 1 else f"{stages.layers[0]} each"
    yield "pipeline", f"{stages.schedule}, layers of {len(stages.layers)} stages: {layers}"
    yield "", f"bubble {stages.bubble:.1%} of the time at work; at most {stages.chunks_alive} chunk activations alive"
    yield "", f"head {stages.head}; a stage keeps its {stages.keep}"


def _parameters(d: Description) -> Table:
    """Lines one below the other, so that nothing is cut on a terminal of 80 columns."""
    title = "Parameters: bytes per device, and size→padded size/axes of each dim"
    table = make_table(title, ["parameter"], ["weights", "gradients", "optimizer"])
    for p in d.parameters:
        lines = [p.name, _shape(p), *_tiers(p)]
        table.add_row("\n  ".join(lines), binary(p.weights), binary(p.gradients), binary(p.optimizer))
    return table


def _saved(d: Description) -> Table:
    title = f"Activations that a layer saves, recompute {d.config['recompute']['policy']}, bytes per device"
    table = make_table(title, ["saved", "shape", "dtype", "memory"], ["arrays", "bytes"])
    for a in d.activations:
        table.add_row(a.name, " x ".join(map(str, a.shape)), a.dtype, a.tier, str(a.count), binary(a.bytes))
    return table


def _memory(d: Description) -> Iterator[Table]:
    yield _sizes("Memory per device", dataclasses.asdict(d.memory), MEANING, {"total": d.memory.total})
    kept = {name: size for name, size in dataclasses.asdict(d.off_device).items() if size}
    if kept:
        totals = {"on the host": d.off_device.host} | ({"on NVMe": d.off_device.nvme} if d.off_device.nvme else {})
        yield _sizes("Off the devices, for each device", kept, OFF_DEVICE, totals)


def _sizes(title: str, sizes: Mapping[str, int], meaning: Mapping[str, str], totals: Mapping[str, int]) -> Table:
    table = make_table(title, ["", "", ""])
    table.columns[1].justify = "right"
    for name, size in sizes.items():
        table.add_row(name, binary(size), meaning[name])
    for name, size in totals.items():
        table.add_row(name, binary(size), style="bold")
    return table


def _sent(transfers: Sequence[Transfer]) -> Table:
    """By kind, axes and dtype: a step sends hundreds of sizes."""
    lines: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for t in transfers:
        line: tuple[str, str, str] = t.kind, " x ".join(t.axes), t.dtype
        count, payload, sent = lines.get(line, (0, 0, 0.0))
        lines[line] = count + t.count, payload + t.payload, sent + t.link_bytes
    title = "On the wire, per device and step"
    table = make_table(title, ["collective", "axes", "dtype"], ["calls", "payload", "on the link"])
    for line, (count, payload, sent) in lines.items():
        table.add_row(*line, f"{count:,}", binary(payload), binary(sent))
    return table


def _tiers(p: Parameter) -> Iterator[str]:
    """What of it is not on the devices, and where it is instead."""
    if p.optimizer_on != "device":
        yield f"optimizer: {TIERS[p.optimizer_on]}"
    if p.weights_on != "device":
        yield f"weights and gradients: {TIERS[p.weights_on]}"


def _shape(p: Parameter) -> str:
    """Each dim with its padding and the axes that cut it, such as 12 x 50257→50260/tensor/data x 768."""
    sizes = [
        f"{size}→{stored}" if size != stored else f"{size}" for size, stored in zip(p.shape, p.stored, strict=True)
    ]
    cuts = [[entry] if isinstance(entry, str) else entry or [] for entry in p.spec]
    return " x ".join("/".join([size, *cut]) for size, cut in zip(sizes, cuts, strict=True))
