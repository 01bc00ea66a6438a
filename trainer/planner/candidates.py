"""The layouts of a config on so many GPUs, by all of `trainer.config_auto.SEARCHED`; what the user fixed stays.

Only those that can be placed, and none that has a twin which is the same or better whatever the GPU. Plain arithmetic:
knows no GPU, no bytes and no seconds, and makes no config but of a layout that was chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal

from models.recompute import RecomputePolicy
from sharding.mesh import MeshConfig
from sharding.pipeline.config import PipelineConfig
from sharding.pipeline.stages import split_layers
from trainer import config_checks
from trainer.config import Config
from trainer.divisors import divisors
from trainer.planner.arrangement import Arrangement
from trainer.planner.flow import Flow

Keep = Literal["residuals", "inputs"]
Head = Literal["spread", "last"]

THRIFT: tuple[tuple[Keep, RecomputePolicy], ...] = (
    ("residuals", "none"),
    ("residuals", "selective"),
    ("residuals", "full"),
    ("inputs", "none"),
    ("inputs", "selective"),
    ("inputs", "full"),
)
"""Ways to keep less, the fastest first: each repeats all that those before it do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One layout. Without stages, what is about them has no effect."""

    pipeline: int
    replica: int
    data: int
    tensor: int
    zero: int
    schedule: str
    virtual_stages: int
    layers: tuple[int, ...]
    """Of every virtual stage."""
    head: Head
    keep: Keep
    micro: int
    """Sequences per device at a time."""
    recompute: RecomputePolicy

    @property
    def mesh(self) -> dict[str, int]:
        """The axes that have more than one device."""
        sizes = {axis: getattr(self, axis) for axis in ("pipeline", "replica", "data", "tensor")}
        return {axis: size for axis, size in sizes.items() if size > 1}

    def __str__(self) -> str:
        """In a line, in a config's words."""
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items()) or "one device"
        staged = self._pipeline() if self.pipeline > 1 else {}
        settings = {
            **({"zero.stage": self.zero} if self.data > 1 else {}),
            **{f"pipeline.{key}": value for key, value in staged.items()},
            "batch.micro": self.micro,
            "recompute": self.recompute,
        }
        return f"{mesh}, {', '.join(f'{key}={value}' for key, value in settings.items())}"

    def on(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """A config's tree, as `Config.from_dict` reads it, with this layout for its own."""
        zero = tree.get("zero", {}) if self.zero else {}  # with stage 0 its other keys have no effect
        batch = {**tree.get("batch", {}), "micro": self.micro}
        if self.tensor == 1:  # nothing is sent that parts could hide
            batch.pop("parts", None)
        laid_out = {
            **tree,
            "mesh": self.mesh or {"data": 1},
            "pipeline": self._pipeline(),
            "zero": {**zero, "stage": self.zero},
            "batch": batch,
            "recompute": {"policy": self.recompute},
        }
        if self.pipeline == 1:
            del laid_out["pipeline"]
        return laid_out

    def _pipeline(self) -> dict[str, Any]:
        even = split_layers(sum(self.layers), self.pipeline, self.virtual_stages, None).num_layers
        section = {
            "schedule": self.schedule,
            "virtual_stages": self.virtual_stages,
            "layers": None if self.layers == even else list(self.layers),
            "keep": self.keep,
            "head": self.head,
        }
        return {key: value for key, value in section.items() if value != getattr(PipelineConfig(), key)} or {
            "schedule": self.schedule
        }


@dataclass(frozen=True)
class Space:
    """The layouts of `config` on `gpus` GPUs in which the settings `fixed` (of `SEARCHED`) are the config's."""

    config: Config
    gpus: int
    fixed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        held = set()
        if self.config.offload.activations != "none":  # what is kept costs time on the link: none is always fastest
            held.add("recompute.policy")
        if self.config.offload.parameters != "none":  # which no other stage can do
            held.add("zero.stage")
        object.__setattr__(self, "fixed", self.fixed | held)

    def placements(self) -> Iterator[Candidate]:
        """Every layout but for micro-batches and what is kept: all at once, and all of it."""
        for pipeline, replica, data, tensor in self._meshes():
            for virtual, layers in self._splits(pipeline):
                for head in self._choices("pipeline.head", ("spread", "last") if pipeline > 1 else ("spread",)):
                    for zero in self._choices("zero.stage", (0, 1, 2, 3) if data > 1 else (0,)):
                        yield Candidate(
                            pipeline=pipeline,
                            replica=replica,
                            data=data,
                            tensor=tensor,
                            zero=zero,
                            schedule=self._schedule(virtual),
                            virtual_stages=virtual,
                            layers=layers,
                            head=head,
                            keep="residuals",
                            micro=self._share(replica * data),
                            recompute="none",
                        )

    def micro_batches(self, placement: Candidate) -> Iterator[Candidate]:
        """The placement with every micro-batch that divides its share of the batch, and into `batch.parts`."""
        share = self._share(placement.replica * placement.data)
        parts = self.config.batch.parts if placement.tensor > 1 else 1
        for micro in self._choices("batch.micro", divisors(share)):
            if share % micro == 0 and micro % parts == 0:
                yield dataclasses.replace(placement, micro=micro)

    def thriftier(self, candidate: Candidate) -> Iterator[Candidate]:
        """The candidate with every way to keep less, the fastest first (`THRIFT`)."""
        policies = self._choices("recompute.policy", ("none", "selective", "full"))
        keeps = self._choices("pipeline.keep", ("residuals", "inputs")) if candidate.pipeline > 1 else ("residuals",)
        for keep, policy in THRIFT:
            saves = not (keep == "inputs" and policy == "full" and max(candidate.layers) == 1)
            if keep in keeps and policy in policies and saves:
                yield dataclasses.replace(candidate, keep=keep, recompute=policy)

    def num_micro_batches(self, candidate: Candidate) -> int:
        """Of a device in a step."""
        return self._share(candidate.replica * candidate.data) // candidate.micro

    def arrangement(self, candidate: Candidate, flow: Flow) -> Arrangement:
        """What estimates are of."""
        return dataclasses.replace(
            self._base,
            micro_batch=candidate.micro,
            pipeline=candidate.pipeline,
            replica=candidate.replica,
            data=candidate.data,
            tensor=candidate.tensor,
            layers=candidate.layers,
            flow=flow,
            zero=candidate.zero,
            recompute=candidate.recompute,
            keeps_inputs=candidate.pipeline > 1 and candidate.keep == "inputs",
            spread=candidate.pipeline > 1 and candidate.head == "spread",
        )

    @cached_property
    def _base(self) -> Arrangement:
        return Arrangement.of(self._undivided)

    @cached_property
    def _undivided(self) -> Config:
        """The config on one device."""
        batch = dataclasses.replace(self.config.batch, micro=None)
        return dataclasses.replace(self.config, mesh=MeshConfig(), pipeline=PipelineConfig(), batch=batch)

    def _meshes(self) -> Iterator[tuple[int, int, int, int]]:
        """Sizes of pipeline, replica, data and tensor that use all GPUs, and over which the batch divides."""
        for tensor in self._tensors:
            for pipeline in self._choices("mesh.pipeline", self._pipelines(self.gpus // tensor)):
                groups, rest = divmod(self.gpus, tensor * pipeline)
                if rest or self.config.batch.global_ % groups:
                    continue
                for data in self._choices("mesh.data", divisors(groups)):
                    for replica in self._choices("mesh.replica", self._replicas(groups, data)):
                        if replica * data == groups:
                            yield pipeline, replica, data, tensor

    def _pipelines(self, gpus: int) -> Sequence[int]:
        """Stages offload neither what they keep nor their layers."""
        return (1,) if self._offloads else divisors(gpus)

    @property
    def _offloads(self) -> bool:
        return (self.config.offload.activations, self.config.offload.parameters) != ("none", "none")

    def _replicas(self, groups: int, data: int) -> tuple[int, ...]:
        """Replicas of single devices are the same as `data` with ZeRO 0."""
        return (groups // data,) if data > 1 or "mesh.data" in self.fixed else (1,)

    @cached_property
    def _tensors(self) -> tuple[int, ...]:
        """Sizes of `tensor` that the model and the sequence can be cut over."""
        return tuple(
            tensor
            for tensor in self._choices("mesh.tensor", divisors(self.gpus))
            if self.gpus % tensor == 0
            and not any(
                config_checks.contradictions(dataclasses.replace(self._undivided, mesh=MeshConfig(tensor=tensor)))
            )
        )

    def _splits(self, pipeline: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Numbers of virtual stages, and their layers. Of those whose chunks are equally deep, only the fewest."""
        layers = self.config.model.layers
        if pipeline == 1:
            yield 1, (layers,)
            return
        explicit = self.config.pipeline.layers if "pipeline.layers" in self.fixed else None
        fewest = {-(-layers // (pipeline * depth)) for depth in range(1, -(-layers // pipeline) + 1)}
        if explicit:
            fewest = {len(explicit) // pipeline}
        for virtual in self._choices("pipeline.virtual_stages", tuple(sorted(fewest))):
            try:
                yield virtual, split_layers(layers, pipeline, virtual, explicit).num_layers
            except ValueError:  # more stages than layers
                continue

    def _schedule(self, virtual_stages: int) -> str:
        named = "1f1b" if virtual_stages == 1 else "interleaved_1f1b"
        return self._choices("pipeline.schedule", (named,))[0]

    def _share(self, groups: int) -> int:
        """Sequences of a step that each of so many groups of devices takes."""
        return self.config.batch.global_ // groups

    def _choices(self, key: str, free: Sequence[Any]) -> Sequence[Any]:
        return (attrgetter(key)(self.config),) if key in self.fixed else free
