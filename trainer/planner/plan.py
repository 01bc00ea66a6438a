"""The plan of a config on GPUs that are not there: does it fit, what goes over which link, how long does a step take.

Bytes of the state, activations that are kept and everything that is sent are read from the traced step, exact for any
mesh; what the compiler adds, and seconds, are closed forms (`estimate`). No device is touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sharding.mesh import MOST_DEVICES
from trainer.attention import assumption
from trainer.config import Config
from trainer.description import describe, resolve
from trainer.errors import ConfigError
from trainer.off_device import OffDevice
from trainer.planner.arrangement import Arrangement
from trainer.planner.auto import fill_in
from trainer.planner.estimate import estimate
from trainer.planner.fitting import changed, helps, largest_micro_batch, lean_attention
from trainer.planner.gpu import Gpu, load
from trainer.planner.host_update import HostUpdate
from trainer.planner.links import Cluster
from trainer.planner.memory import Memory
from trainer.planner.ranking import with_margin
from trainer.planner.seconds import Seconds, Step
from trainer.planner.traced import traced_stages
from trainer.units import DAY, HOUR
from trainer.wire import Kind, Transfer

Link = Literal["nvlink", "network"]


@dataclass(frozen=True)
class Sent:
    """All that a step sends of one kind over the same axes, on a GPU of the stage that sends most."""

    kind: Kind
    axes: tuple[str, ...]
    link: Link
    """NVLink where all of a group are in one node, else the network: its slowest part."""
    messages: int
    largest: int
    """Bytes of the largest message."""
    link_bytes: float
    """That each GPU puts on the link in a step."""
    seconds: float
    """If nothing else happened meanwhile."""


@dataclass(frozen=True)
class Plan:
    """Sizes are bytes per GPU of the worst stage, times those of one step, unless said."""

    gpu: str
    gpus: int
    gpus_per_node: int
    mesh: dict[str, int]
    assumed: str | None
    """What was taken for granted because the config leaves it open."""
    attention: str
    """What is taken to compute it."""
    num_parameters: int
    tokens_per_step: int
    micro_batch: int
    accumulation: int
    fits: bool
    fits_surely: bool
    """Even if the compiler sets aside as much more as plans of large models have been below it."""
    memory_bytes: float
    """That a GPU has."""
    limit_bytes: float
    """Of these, what a step may come to: what JAX takes for arrays, and what the driver and libraries hold."""
    state_bytes: float
    """That a step is given and gives back: masters and moments; of what is offloaded, its weights and gradients."""
    off_device: OffDevice
    """What is kept for each GPU in its host's memory, and on NVMe."""
    host_update: HostUpdate
    """What the update on the host is made of, side by side. The rates of host memory and disks are the GPU's file's."""
    stages: tuple[Memory, ...]
    """Of a GPU of each pipeline stage. Stages of one lockstep program hold alike."""
    worst_stage: int
    """The one that needs the most memory, the first of equals."""
    largest_micro_batch: int | None
    """Sequences at a time that still fit, of those that divide the batch; None where not even one does."""
    helps: dict[str, float]
    """Where it does not fit: overrides each of which makes it fit, and seconds of a step then. A larger mesh may need
    more GPUs."""
    wire: list[Sent]
    seconds: Seconds
    """What is sent counts as far as nothing hides it."""
    seconds_per_step: float
    tokens_per_second_per_gpu: float
    bubble: float
    """Part of the step that is spent waiting for other stages."""
    mfu: float
    """Model FLOPs by `trainer.metrics.model_flops_per_token` (causal attention halved, recompute not counted)."""
    hfu: float
    """FLOPs that are executed, recompute included, over the same peak."""
    checkpoint_bytes: float
    """Of the whole state, on disk."""

    @property
    def host_bytes(self) -> float:
        """That are kept for each GPU in its host's memory."""
        return self.off_device.host

    @property
    def memory(self) -> Memory:
        """Of the worst stage."""
        return self.stages[self.worst_stage]

    def checkpoint_seconds(self, bandwidth: float) -> float:
        """That storage is busy with saving which takes in so many bytes/s from all GPUs together."""
        return self.checkpoint_bytes / bandwidth

    def days(self, tokens: float) -> float:
        """That training on so many tokens takes."""
        return tokens / (self.tokens_per_second_per_gpu * self.gpus) / DAY

    def gpu_hours(self, tokens: float) -> float:
        return tokens / self.tokens_per_second_per_gpu / HOUR

    def _repr_html_(self) -> str:
        """For notebooks."""
        from trainer.planner.report import fragment  # which knows plans

        return fragment(self)


def plan(config: Config, gpu: str = "h100", gpus: int | None = None, gpus_per_node: int = 8) -> Plan:
    """The plan for `gpus` of a kind (`trainer.planner.KINDS`, or the path of a file that describes one).

    Unless given, there are as many as the mesh has devices. A mesh axis of -1 takes what `gpus` leaves, and an `auto`
    mesh is searched.

    Raises:
        ConfigError: an unknown GPU, or one that cannot do what the config asks for, or the config does not fit so many.
    """
    kind = load(gpu)
    kind.require(config.precision.compute)
    if gpus_per_node < 1:
        raise ConfigError(f"gpus_per_node={gpus_per_node}: use 1 or more")
    config, taken = fill_in(config, kind, gpus, gpus_per_node)
    config, assumed = on(config, gpus)
    description = describe(config)
    estimated = estimate(Arrangement.of(config), kind, gpus_per_node)
    stages = traced_stages(estimated, description)
    worst = max(range(len(stages)), key=lambda stage: stages[stage].total)
    fits = stages[worst].total <= kind.limit_bytes
    return Plan(
        gpu=kind.name,
        gpus=description.devices,
        gpus_per_node=gpus_per_node,
        mesh=description.mesh,
        assumed=taken or assumed,
        attention=_attention(config, kind, gpus_per_node),
        num_parameters=description.num_parameters,
        tokens_per_step=description.tokens_per_step,
        micro_batch=description.micro_batch,
        accumulation=description.accumulation,
        fits=fits,
        fits_surely=with_margin(stages[worst]) <= kind.limit_bytes,
        memory_bytes=kind.memory_bytes,
        limit_bytes=kind.limit_bytes,
        state_bytes=description.state,
        off_device=description.off_device,
        host_update=Step(estimated.arrangement, Cluster(kind, gpus_per_node)).host_update,
        stages=stages,
        worst_stage=worst,
        largest_micro_batch=largest_micro_batch(config, kind),
        helps={} if fits else helps(config, kind, gpus_per_node),
        wire=list(_sent(description.wire, description.mesh, Cluster(kind, gpus_per_node))),
        seconds=estimated.seconds,
        seconds_per_step=estimated.seconds.total,
        tokens_per_second_per_gpu=estimated.tokens_per_second / description.devices,
        bubble=estimated.seconds.bubble / estimated.seconds.total,
        mfu=estimated.mfu,
        hfu=estimated.hfu,
        checkpoint_bytes=4 * (1 + estimated.arrangement.moments) * description.num_parameters,
    )


def on(config: Config, gpus: int | None) -> tuple[Config, str | None]:
    """The config on so many GPUs, whatever it says of virtual devices, and what had to be assumed for it.

    Raises:
        ConfigError: it does not fit on them.
    """
    if gpus is None:
        config, assumed = resolve(config)
        return _on_gpus(config), assumed
    if not 1 <= gpus <= MOST_DEVICES:
        raise ConfigError(f"gpus={gpus}: use 1 to {MOST_DEVICES:,}")
    return _on_gpus(config).resolve(gpus), None


def _attention(config: Config, gpu: Gpu, gpus_per_node: int) -> str:
    """What computes it, and what would be faster."""
    others = {setting: Arrangement.of(changed(config, setting)) for setting in lean_attention(config)}
    steps = {setting: estimate(other, gpu, gpus_per_node).seconds.total for setting, other in others.items()}
    return "; ".join([assumption(config), *(f"{setting} takes {step:.3g} s a step" for setting, step in steps.items())])


def _on_gpus(config: Config) -> Config:
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, virtual_devices=None))


def _sent(transfers: Sequence[Transfer], mesh: Mapping[str, int], cluster: Cluster) -> Iterator[Sent]:
    alike: dict[tuple[Kind, tuple[str, ...]], list[Transfer]] = {}
    for transfer in transfers:
        alike.setdefault((transfer.kind, transfer.axes), []).append(transfer)
    for (kind, axes), found in alike.items():
        group = cluster.along(axes, mesh)
        yield Sent(
            kind=kind,
            axes=axes,
            link="nvlink" if cluster.in_one_node(axes, mesh) else "network",
            messages=sum(transfer.count for transfer in found),
            largest=max(transfer.payload // transfer.count for transfer in found),
            link_bytes=sum(transfer.link_bytes for transfer in found),
            seconds=sum(
                transfer.count * group.seconds(transfer.kind, transfer.payload / transfer.count) for transfer in found
            ),
        )
