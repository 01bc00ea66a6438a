"""What an estimate is of: a model, the devices it is laid out on, its batch, and whose habits it is trained with.

Numbers only, so that thousands can be made and compared. A config of ours is one kind of it, a published run another.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config import ModelConfig
from models.recompute import RecomputePolicy
from sharding.mesh import PIPELINE, num_groups
from trainer.attention import assumed
from trainer.config import Config
from trainer.offload.choice import num_elements, offloaded
from trainer.pipeline import make_stages
from trainer.planner.flow import Flow, lockstep
from trainer.planner.practice import MESHWRIGHT, OURS, Hidden, Practice

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of an element."""
MOMENTS = {"adamw": 2, "lion": 1, "sgd": 1}
"""Arrays of a parameter's shape that an optimizer keeps."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """One training step on a mesh, as far as its memory and time depend on it."""

    model: ModelConfig
    sequence: int
    """Tokens."""
    micro_batch: int
    """Sequences per device at a time."""
    global_batch: int
    """Sequences per step."""
    pipeline: int = 1
    replica: int = 1
    data: int = 1
    tensor: int = 1
    layers: tuple[int, ...]
    """Of every virtual stage, in the order of the model."""
    flow: Flow
    itemsize: int = 2
    """Bytes of an element of what matmuls run in."""
    sum_itemsize: int = 4
    """Of the sum of a step's gradients."""
    reduce_itemsize: int = 4
    """Of gradients on their way between devices."""
    moments: int = 2
    """Arrays of a parameter's shape that the optimizer keeps, float32."""
    zero: int = 1
    """Stage."""
    recompute: RecomputePolicy = "none"
    offload: bool = False
    """Activations wait for their backward passes on the host, as far as the trainer can have them there."""
    offloaded: float = 0.0
    """The part of all parameters whose masters and moments are on the host or on NVMe, and updated by the host."""
    on_nvme: bool = False
    """They are on NVMe."""
    streamed: bool = False
    """The layers' weights and gradients are on the host, but for those at work."""
    layers_on_nvme: bool = False
    """They are on NVMe, and come and go through the host's memory."""
    keeps_inputs: bool = False
    """A stage keeps only its input, and runs again for its backward pass."""
    spread: bool = False
    """Embedding and head are cut over all stages by vocabulary."""
    parts: int = 1
    """Of a micro-batch, that layers work at side by side, so that one works while another sends."""
    practice: Practice = MESHWRIGHT

    @classmethod
    def of(cls, config: Config, practice: Practice | None = None) -> Arrangement:
        """That of a config of ours, no mesh axis of which is -1; by the habits of another trainer, if given.

        Raises:
            ValueError: the layers or the batch cannot be placed on the mesh.
        """
        mesh = config.mesh.sizes
        stages = make_stages(config, mesh)
        section = config.pipeline
        groups = num_groups(mesh)
        return cls(
            model=config.model,
            sequence=config.batch.sequence,
            micro_batch=config.batch.micro_batch(groups),
            global_batch=config.batch.global_,
            pipeline=mesh[PIPELINE],
            replica=mesh["replica"],
            data=mesh["data"],
            tensor=mesh["tensor"],
            layers=stages.num_layers,
            flow=lockstep(section.schedule, mesh[PIPELINE], stages.num_chunks, config.batch.accumulation(groups)),
            itemsize=BYTES[config.precision.compute],
            reduce_itemsize=BYTES[config.precision.reduce],
            moments=MOMENTS[config.optimizer.name],
            zero=config.zero.stage,
            recompute=config.recompute.policy,
            offload=config.offload.activations == "host",
            offloaded=_offloaded(config),
            on_nvme=config.offload.optimizer == "nvme",
            streamed=config.offload.parameters != "none",
            layers_on_nvme=config.offload.parameters == "nvme",
            keeps_inputs=mesh[PIPELINE] > 1 and section.keep == "inputs",
            spread=mesh[PIPELINE] > 1 and section.head == "spread",
            parts=config.batch.parts,
            practice=practice or OURS[assumed(config)],
        )

    @property
    def gpus(self) -> int:
        return self.pipeline * self.replica * self.data * self.tensor

    @property
    def hides(self) -> frozenset[Hidden]:
        """What may travel beside work."""
        return self.practice.hides | ({"tensor"} if self.parts > 1 else frozenset())

    @property
    def sharded(self) -> int:
        """The stage of ZeRO as far as there is somebody to share with."""
        return self.zero if self.data > 1 else 0

    @property
    def shares(self) -> int:
        """Devices that the master and the moments of a parameter are cut over."""
        return self.data if self.sharded else 1

    @property
    def chunks(self) -> int:
        """Virtual stages of each stage."""
        return len(self.layers) // self.pipeline

    @property
    def micro_batches(self) -> float:
        """Of a device in a step. Not whole where a published batch does not divide."""
        return self.global_batch / (self.replica * self.data * self.micro_batch)

    @property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.micro_batch * self.sequence

    @property
    def depth(self) -> int:
        """Layers of the deepest virtual stage."""
        return max(self.layers)

    @property
    def region(self) -> float:
        """The part of the tokens that norms and residuals of a device are for."""
        return 1 / self.tensor if self.practice.sequence_parallel else 1


def _offloaded(config: Config) -> float:
    """As a part of all, by whole parameters."""
    if config.offload.optimizer == "none":
        return 0.0
    sizes = num_elements(config.model)
    return sum(sizes[name] for name in offloaded(config)) / sum(sizes.values())
