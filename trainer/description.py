"""What a config would train, in numbers: every parameter, what is kept, held and sent, on each device.

From shapes and a traced step alone: no device is touched. Says nothing to anybody: see `trainer.show`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from models.presets import num_parameters
from sharding.layout import Layout
from sharding.mesh import num_groups
from sharding.pipeline.executor import Pipeline
from trainer.attention import chosen
from trainer.config import Config
from trainer.metrics import model_flops_per_token
from trainer.off_device import OffDevice, gradients_passing, off_device
from trainer.offload.choice import offloaded, streamed
from trainer.optimizer import RULES
from trainer.pipeline import make_stages
from trainer.program import plan_layouts
from trainer.saved import Activation, Tier, saved_by_layer
from trainer.trace import trace_step
from trainer.wire import Transfer, busiest

Spec = list[str | list[str] | None]
OptimizerOn = Literal["device", "host", "nvme"]
WeightsOn = Literal["device", "host", "nvme"]


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
    """The copy that layers compute with, where it is held for the whole step. A whole float32 master needs no copy; an
    offloaded one leaves its shard's behind."""
    gradients: int
    """The float32 sum over the micro-batches; of what is offloaded also the global gradient, which leaves the step."""
    optimizer: int
    """The float32 master weight and the moments. None where they are offloaded."""
    optimizer_on: OptimizerOn
    """Where the master weight and the moments are."""
    weights_on: WeightsOn
    """Where the weight that layers compute with is, and its gradient: what is elsewhere is not counted here."""


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
class Stages:
    """How layers and micro-batches are spread over `mesh.pipeline`."""

    schedule: str
    layers: tuple[int, ...]
    """Of every (virtual) stage."""
    bubble: float
    """Time lost, as a part of the time at work, where a backward takes two forwards."""
    chunks_alive: int
    """The most activations of a (virtual) stage's micro-batches that a device keeps at once."""
    keep: str
    head: str


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
    attention: str
    """What computes it, and why; on GPUs, unless there are virtual devices."""
    pipeline: Stages | None
    """None without stages."""
    parameters: list[Parameter]
    activations: list[Activation]
    """What each layer keeps of a micro-batch."""
    memory: Memory
    state: int
    """Bytes of `memory` that a step is given and gives back: master weights and moments; of what is offloaded, its
    weights and its gradients."""
    off_device: OffDevice
    wire: list[Transfer]


def describe(config: Config) -> Description:
    """What `config` would train. A mesh axis of -1 takes `mesh.virtual_devices`, or is taken as 1.

    Raises:
        ConfigError: the model or the batch does not fit the mesh.
    """
    config, assumed = resolve(config)
    sizes = config.mesh.sizes
    groups = num_groups(sizes)
    layouts, held = plan_layouts(config, sizes), parameters(config)
    trace = trace_step(_scanned(config))
    gpu = "" if config.mesh.virtual_devices is None else None
    attention = chosen(config, gpu)
    activations = list(saved_by_layer(trace.program, make_stages(config, sizes).depth))
    return Description(
        config=_written_out(config).to_dict(),
        mesh=sizes,
        devices=math.prod(sizes.values()),
        assumed=assumed,
        num_parameters=num_parameters(config.model),
        micro_batch=config.batch.micro_batch(groups),
        accumulation=config.batch.accumulation(groups),
        tokens_per_step=config.batch.global_ * config.batch.sequence,
        model_flops_per_token=model_flops_per_token(config.model, config.batch.sequence),
        attention=f"{attention.name}: {attention.why}",
        pipeline=_stages(trace.pipeline) if trace.pipeline else None,
        parameters=held,
        activations=activations,
        memory=Memory(
            weights=sum(parameter.weights for parameter in held),
            gradients=sum(parameter.gradients for parameter in held),
            optimizer=sum(parameter.optimizer for parameter in held),
            gathered=_gathered(config, layouts),
            activations=_kept(config, trace.pipeline, _in(activations, "device")),
        ),
        state=sum(_state(layout, parameter, config) for layout, parameter in zip(layouts.values(), held, strict=True)),
        off_device=off_device(config, layouts, config.model.layers * _in(activations, "host")),
        wire=busiest(trace),
    )


def parameters(config: Config) -> list[Parameter]:
    """Every parameter of a config, no mesh axis of which is -1."""
    return [_parameter(name, layout, config) for name, layout in plan_layouts(config, config.mesh.sizes).items()]


def resolve(config: Config) -> tuple[Config, str | None]:
    """The config for a number of devices, none of which is needed, and what had to be assumed for it.

    Raises:
        ConfigError: it does not fit on them.
    """
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
    cut, is_offloaded, stays = layout.zero_dim is not None, name in offloaded(config), name in streamed(config)
    block, shard = math.prod(layout.block_shape), math.prod(layout.shard_shape)
    if is_offloaded:  # the copy at rest, and the gradient that leaves the step
        weights = compute.itemsize * (shard + (block if cut and stage < 3 else 0))
        gradients = 4 * (shard + (block if cut and stage < 2 else 0))
    else:
        weights = compute.itemsize * (block if (stage < 3 if cut else compute != jnp.float32) else 0)
        gradients = 4 * (shard if cut and stage >= 2 else block)
    return Parameter(
        name,
        layout.shape,
        layout.stored_shape,
        [list(entry) if isinstance(entry, tuple) else entry for entry in layout.spec],
        weights=0 if stays else weights,
        gradients=0 if stays else gradients,
        optimizer=0 if is_offloaded else 4 * (1 + _num_moments(config)) * shard,
        optimizer_on=_optimizer_on(config) if is_offloaded else "device",
        weights_on="device" if not stays else "nvme" if config.offload.parameters == "nvme" else "host",
    )


def _optimizer_on(config: Config) -> OptimizerOn:
    """Where what is offloaded is."""
    return "nvme" if config.offload.optimizer == "nvme" else "host"


def _state(layout: Layout, parameter: Parameter, config: Config) -> int:
    """Bytes of a parameter on a device that a step is given and gives back."""
    if parameter.optimizer_on == "device":
        return parameter.optimizer
    if parameter.weights_on != "device":
        return 0
    return (jnp.dtype(config.precision.compute).itemsize + 4) * math.prod(layout.shard_shape)


def _num_moments(config: Config) -> int:
    """Arrays of a parameter's shape that the optimizer keeps."""
    parameter = jax.ShapeDtypeStruct((2,), jnp.float32)
    state = jax.eval_shape(RULES[config.optimizer.name](config.optimizer).init, parameter)
    return sum(leaf.shape == parameter.shape for leaf in jax.tree.leaves(state))


def _stages(pipeline: Pipeline) -> Stages:
    schedule = pipeline.schedule
    return Stages(
        schedule.name,
        pipeline.stages.num_layers,
        schedule.bubble(),
        schedule.num_slots,
        pipeline.keep,
        pipeline.head,
    )


def _kept(config: Config, pipeline: Pipeline | None, by_layer: int) -> int:
    """Bytes of the activations alive at once, where each layer keeps `by_layer` of a micro-batch."""
    if pipeline is None:
        return config.model.layers * by_layer
    tokens = config.batch.micro_batch(num_groups(config.mesh.sizes)) * config.batch.sequence // config.mesh.tensor
    message = tokens * config.model.hidden * jnp.dtype(config.precision.compute).itemsize
    of_chunk, slots = pipeline.stages.depth * by_layer, pipeline.schedule.num_slots
    kept = slots * of_chunk if pipeline.keep == "residuals" else slots * message + of_chunk
    return kept + (sum(pipeline.routes.num_slots) + 2) * message


def _in(activations: list[Activation], tier: Tier) -> int:
    """Bytes of what one layer keeps in this memory."""
    return sum(activation.bytes for activation in activations if activation.tier == tier)


def _gathered(config: Config, layouts: Mapping[str, Layout]) -> int:
    """Bytes of the embedding, of one layer or of the head, whichever is largest, where they are fetched late; and of
    the gradients that are on their way to the host."""
    parts: Counter[str] = Counter()
    itemsize, stays = jnp.dtype(config.precision.compute).itemsize, streamed(config)
    for name, layout in layouts.items():
        if name in stays or (config.zero.stage == 3 and layout.zero_dim is not None):
            block = (layout.layer if layout.stacked else layout).block_shape
            parts[name.split(".")[0]] += math.prod(block) * itemsize
    passing = max((4 * math.prod(layouts[name].layer.shard_shape) for name in stays), default=0)
    micro_batches = config.batch.accumulation(num_groups(config.mesh.sizes))
    return max(parts.values(), default=0) + gradients_passing(micro_batches) * passing
