"""What a config would train, and on what: the mesh, where every parameter lies, bytes per device, what a step sends.

Arithmetic and one trace of the step: it starts no device and allocates nothing, for 530 billion parameters too.
`describe` returns the facts, `show` prints them. Knows no layer and no collective: it reads layouts and a traced step.
"""

from __future__ import annotations

import dataclasses
import json as json_format
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from rich import box
from rich.console import Console
from rich.table import Table

from models.layers import SELECTIVE_NAMES
from models.presets import num_parameters
from sharding.layout import Layout
from sharding.mesh import BATCH_AXES
from trainer import config_yaml
from trainer.config import Config
from trainer.data.prepare import require_room_for_bytes
from trainer.metrics import model_flops_per_token
from trainer.optimizer import RULES
from trainer.program import plan_layouts
from trainer.trace import scan_carry, trace_step, used, within
from trainer.wire import Transfer, busiest

Spec = list[str | list[str] | None]

MEANING = {
    "weights": "copies that layers compute with, held for the whole step",
    "gradients": "float32, summed over the micro-batches",
    "optimizer": "float32: master weights and moments",
    "gathered": "weights of the part at work (a layer, the embedding or the head), under ZeRO 3",
    "activations": "saved by all layers for the backward pass, of one micro-batch",
}
NOT_COUNTED = (
    "Not counted: what only the layer at work needs, a chunk of logits and the head's gradient, the gradients of one "
    "micro-batch before they are added up, and what XLA keeps for itself."
)


@dataclass(frozen=True)
class Parameter:
    """One parameter, and the bytes that each device holds for it."""

    name: str
    shape: tuple[int, ...]
    """Logical and global; parameters of the blocks are stacked, dim 0 is the layer."""
    stored: tuple[int, ...]
    """With padding, where a size does not divide."""
    spec: Spec
    """The mesh axes that each dim is cut over, at rest."""
    weights: int
    """The copy that layers compute with, where it is held for the whole step. A whole float32 master needs no copy."""
    gradients: int
    """The float32 sum over the micro-batches."""
    optimizer: int
    """The float32 master weight and the moments."""


@dataclass(frozen=True)
class Activation:
    """What each layer keeps of a micro-batch for its backward pass: `count` arrays of this kind, on each device."""

    name: str
    """As a recompute policy calls it; for what has no name, the operation that made it."""
    shape: tuple[int, ...]
    dtype: str
    count: int
    bytes: int
    """Of all of them, in one layer."""


@dataclass(frozen=True)
class Memory:
    """Bytes per device; `MEANING` says of what."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Description:
    """All of it. Sizes are bytes per device, numbers of a step are for the whole mesh."""

    config: dict[str, Any]
    """With the sizes that the model derives from others."""
    mesh: dict[str, int]
    devices: int
    assumed: str | None
    """What was taken for granted because the config leaves it open."""
    num_parameters: int
    micro_batch: int
    accumulation: int
    tokens_per_step: int
    model_flops_per_token: float
    """By the convention of `trainer.metrics.model_flops_per_token`."""
    parameters: list[Parameter]
    activations: list[Activation]
    memory: Memory
    wire: list[Transfer]


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
        _print(description, Console())


def describe(config: Config) -> Description:
    """What `config` would train. A mesh axis of -1 takes `mesh.virtual_devices`, or is taken as 1.

    Raises:
        ConfigError: the model or the batch does not fit the mesh.
    """
    config, assumed = _resolve(config)
    sizes = config.mesh.sizes
    groups = math.prod(sizes[axis] for axis in BATCH_AXES)
    accumulation = config.batch.accumulation(groups)
    held = parameters(config)
    trace = trace_step(_scanned(config))
    activations = list(_activations(trace.program, config.model.layers))
    return Description(
        config=_written_out(config).to_dict(),
        mesh=sizes,
        devices=math.prod(sizes.values()),
        assumed=assumed,
        num_parameters=num_parameters(config.model),
        micro_batch=config.batch.global_ // groups // accumulation,
        accumulation=accumulation,
        tokens_per_step=config.batch.global_ * config.batch.sequence,
        model_flops_per_token=model_flops_per_token(config.model, config.batch.sequence),
        parameters=held,
        activations=activations,
        memory=Memory(
            weights=sum(parameter.weights for parameter in held),
            gradients=sum(parameter.gradients for parameter in held),
            optimizer=sum(parameter.optimizer for parameter in held),
            gathered=_gathered(config),
            activations=config.model.layers * sum(activation.bytes for activation in activations),
        ),
        wire=busiest(trace),
    )


def parameters(config: Config) -> list[Parameter]:
    """Every parameter of a config, no mesh axis of which is -1."""
    return [_parameter(name, layout, config) for name, layout in plan_layouts(config, config.mesh.sizes).items()]


def _resolve(config: Config) -> tuple[Config, str | None]:
    """The config for a number of devices, and what had to be assumed for it."""
    fixed = math.prod(size for size in config.mesh.sizes.values() if size != -1)
    devices = config.mesh.virtual_devices or fixed
    free = next((axis for axis, size in config.mesh.sizes.items() if size == -1), None)
    resolved = config.resolve(devices)
    if free is None:
        return resolved, None
    size = resolved.mesh.sizes[free]
    return resolved, f"mesh.{free}=-1 takes what is left and is shown as {size}; for another, say mesh.{free}=N"


def _written_out(config: Config) -> Config:
    """With a number for each of the model's sizes that follows from others unless given."""
    model = config.model
    full = dataclasses.replace(model, kv_heads=model.num_kv_heads, head_dim=model.dim_per_head, ffn=model.ffn_size)
    return dataclasses.replace(config, model=full)


def _scanned(config: Config) -> Config:
    """With the layers in a scan: what they save and send is the same, and it is traced once for all of them."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, scan_layers=True))


def _parameter(name: str, layout: Layout, config: Config) -> Parameter:
    """What is held follows from when weights are gathered and gradients scattered: see `sharding.zero`."""
    stage, compute = config.zero.stage, jnp.dtype(config.precision.compute)
    cut = layout.zero_dim is not None
    block, shard = math.prod(layout.block_shape), math.prod(layout.shard_shape)
    copied = stage < 3 if cut else compute != jnp.float32
    return Parameter(
        name,
        layout.shape,
        layout.stored_shape,
        [list(entry) if isinstance(entry, tuple) else entry for entry in layout.spec],
        weights=block * compute.itemsize if copied else 0,
        gradients=4 * (shard if cut and stage >= 2 else block),
        optimizer=4 * (1 + _num_moments(config)) * shard,
    )


def _num_moments(config: Config) -> int:
    """Arrays of a parameter's shape that the optimizer keeps."""
    parameter = jax.ShapeDtypeStruct((2,), jnp.float32)
    state = jax.eval_shape(RULES[config.optimizer.name](config.optimizer).init, parameter)
    return sum(leaf.shape == parameter.shape for leaf in jax.tree.leaves(state))


def _gathered(config: Config) -> int:
    """Bytes of the embedding, of one layer or of the head, whichever is largest, where they are gathered late."""
    parts: Counter[str] = Counter()
    for name, layout in plan_layouts(config, config.mesh.sizes).items():
        if config.zero.stage == 3 and layout.zero_dim is not None:
            block = (layout.layer if layout.stacked else layout).block_shape
            parts[name.split(".")[0]] += math.prod(block) * jnp.dtype(config.precision.compute).itemsize
    return max(parts.values(), default=0)


# To name an array without a name, look at what it was before it was only cast, moved or repeated.
_MOVES = ("reduce_precision", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "transpose")


def _activations(step: ClosedJaxpr, layers: int) -> Iterator[Activation]:
    """What the forward scan over the layers stacks: just that is kept for the backward pass."""
    scan = next(equation for equation in _equations(used(step)) if _is_forward(equation, layers))
    block, (first, carried) = scan.params["jaxpr"].jaxpr, scan_carry(scan)
    made = {variable: equation for equation in block.eqns for variable in equation.outvars}
    inputs = block.invars[first:][:carried]
    saved = Counter(
        (_name(variable, made, inputs), variable.aval.shape, str(variable.aval.dtype))
        for variable in block.outvars[carried:]
    )
    for (name, shape, dtype), count in saved.items():
        yield Activation(name, shape, dtype, count, count * math.prod(shape) * jnp.dtype(dtype).itemsize)


def _is_forward(equation: JaxprEqn, layers: int) -> bool:
    """Whether it is the scan over the layers of the forward pass, by the names in it."""
    if equation.primitive.name != "scan" or equation.params["length"] != layers or equation.params["reverse"]:
        return False
    inner = equation.params["jaxpr"].jaxpr.eqns
    return any(e.primitive.name == "name" and e.params["name"] in SELECTIVE_NAMES for e in inner)


def _equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Its equations, and those of the programs within them."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in within(equation):
            yield from _equations(inner)


def _name(variable: Var, made: dict[Var, JaxprEqn], inputs: Sequence[Var]) -> str:
    """What an array of a block is called; `made` holds the equation of each, but for those that come from outside."""
    equation = made.get(variable)
    while equation is not None and (before := _before(variable, equation)) is not None:
        variable, equation = before, made.get(before)
    if equation is None:
        return "input" if variable in inputs else "weight"
    return str(equation.params.get("name") or equation.primitive.name)


def _before(variable: Var, equation: JaxprEqn) -> Var | None:
    """The array that `equation` only moved, or handed through it as the argument of a part that is recomputed."""
    if equation.primitive.name in _MOVES:
        return next(operand for operand in equation.invars if isinstance(operand, Var))
    if equation.primitive.name == "remat2":
        inner = equation.params["jaxpr"]
        handed = inner.outvars[equation.outvars.index(variable)]
        return equation.invars[inner.invars.index(handed)] if handed in inner.invars else None
    return None


def _print(description: Description, console: Console) -> None:
    if not console.is_terminal:
        console.width = 160  # a pipe has no width, and rich would wrap at 80
    console.print(config_yaml.dump(description.config), highlight=False, markup=False)
    for table in (
        _summary(description),
        _parameters(description),
        _saved(description),
        _memory(description.memory),
        _sent(description.wire),
    ):
        console.print(table)
    console.print(NOT_COUNTED, style="dim", highlight=False)


def _table(title: str, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Columns of texts, then columns of numbers. Names and numbers are never wrapped; without headings, no header."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=any(texts))
    for i, heading in enumerate(texts):
        table.add_column(heading, no_wrap=i == 0, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _summary(d: Description) -> Table:
    groups = math.prod(d.mesh[axis] for axis in BATCH_AXES)
    mesh = " x ".join(f"{axis} {size}" for axis, size in d.mesh.items() if size > 1)
    sequences, length = d.config["batch"]["global"], d.config["batch"]["sequence"]
    flops = f"{d.model_flops_per_token:.4g} a token; causal attention halved, recompute not counted"
    table = _table("What would be trained", ["", ""])
    table.add_row("devices", f"{d.devices:,} = {mesh}" if mesh else "1")
    if d.assumed:
        table.add_row("", d.assumed)
    table.add_row("parameters", f"{d.num_parameters:,}")
    table.add_row("a step", f"{d.tokens_per_step:,} tokens: {sequences:,} sequences of {length:,}")
    table.add_row("", f"micro batch {d.micro_batch} x accumulation {d.accumulation} x {groups} groups of devices")
    table.add_row("model FLOPs", flops)
    return table


def _parameters(d: Description) -> Table:
    """Two lines each, so that nothing is cut on a terminal of 80 columns."""
    title = "Parameters: bytes per device, and size→padded size/axes of each dim"
    table = _table(title, ["parameter"], ["weights", "gradients", "optimizer"])
    for p in d.parameters:
        table.add_row(f"{p.name}\n  {_shape(p)}", _size(p.weights), _size(p.gradients), _size(p.optimizer))
    return table


def _saved(d: Description) -> Table:
    title = f"Activations that a layer saves, recompute {d.config['recompute']['policy']}, bytes per device"
    table = _table(title, ["saved", "shape", "dtype"], ["arrays", "bytes"])
    for a in d.activations:
        table.add_row(a.name, " x ".join(map(str, a.shape)), a.dtype, str(a.count), _size(a.bytes))
    return table


def _memory(memory: Memory) -> Table:
    table = _table("Memory per device", ["", "", ""])
    table.columns[1].justify = "right"
    for name, size in dataclasses.asdict(memory).items():
        table.add_row(name, _size(size), MEANING[name])
    table.add_row("total", _size(memory.total), style="bold")
    return table


def _sent(transfers: Sequence[Transfer]) -> Table:
    """By kind, axes and dtype: a step sends hundreds of sizes."""
    lines: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for t in transfers:
        line: tuple[str, str, str] = t.kind, " x ".join(t.axes), t.dtype
        count, payload, sent = lines.get(line, (0, 0, 0.0))
        lines[line] = count + t.count, payload + t.payload, sent + t.link_bytes
    title = "On the wire, per device and step"
    table = _table(title, ["collective", "axes", "dtype"], ["calls", "payload", "on the link"])
    for line, (count, payload, sent) in lines.items():
        table.add_row(*line, f"{count:,}", _size(payload), _size(sent))
    return table


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _shape(p: Parameter) -> str:
    """Each dim with its padding and the axes that cut it, such as 12 x 50257→50260/tensor/data x 768."""
    sizes = [
        f"{size}→{stored}" if size != stored else f"{size}" for size, stored in zip(p.shape, p.stored, strict=True)
    ]
    cuts = [[entry] if isinstance(entry, str) else entry or [] for entry in p.spec]
    return " x ".join("/".join([size, *cut]) for size, cut in zip(sizes, cuts, strict=True))


def _size(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    power = min(int(math.log2(max(count, 1))) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.{2 if power else 0}f} {_UNITS[power]}"
