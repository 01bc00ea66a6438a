"""What a step will need and take, from closed forms: bytes of each GPU, seconds, and how much of the peak is used.

Pure arithmetic, a fraction of a millisecond for each arrangement; nothing is traced and no device is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.metrics import model_flops_per_token
from trainer.planner.arrangement import Arrangement
from trainer.planner.gpu import Gpu
from trainer.planner.links import Cluster
from trainer.planner.memory import Memory, stage_memory
from trainer.planner.seconds import Seconds, step_seconds


@dataclass(frozen=True)
class Estimate:
    """Of one arrangement on one kind of GPU."""

    arrangement: Arrangement
    gpu: Gpu
    seconds: Seconds
    """Of one step, by what they go into."""
    memory: tuple[Memory, ...]
    """Of a GPU of each pipeline stage."""
    executed_flops: float
    """Of all devices in a step: matmuls as they are run, recomputation included; of attention all of the square where
    scores are materialised, the causal half and its repetition in backward where they are not."""

    @property
    def worst_stage(self) -> int:
        """The one that needs the most memory."""
        return max(range(len(self.memory)), key=lambda stage: self.memory[stage].total)

    @property
    def bytes_per_gpu(self) -> float:
        """Of the worst stage."""
        return self.memory[self.worst_stage].total

    @property
    def fits(self) -> bool:
        return self.bytes_per_gpu <= self.gpu.limit_bytes

    @property
    def tokens_per_second(self) -> float:
        """Of all GPUs."""
        return self.arrangement.global_batch * self.arrangement.sequence / self.seconds.total

    @property
    def mfu(self) -> float:
        """Model FLOPs, by the convention of `trainer.metrics.model_flops_per_token`, over the peak of all GPUs."""
        per_token = model_flops_per_token(self.arrangement.model, self.arrangement.sequence)
        return per_token * self.tokens_per_second / self._peak

    @property
    def hfu(self) -> float:
        """`executed_flops` over the peak of all GPUs."""
        return self.executed_flops / self.seconds.total / self._peak

    @property
    def _peak(self) -> float:
        return self.arrangement.gpus * self.gpu.peak_flops


def estimate(arrangement: Arrangement, gpu: Gpu, gpus_per_node: int = 8) -> Estimate:
    """The estimate for GPUs of this kind, so many to a node, laid out with `tensor` innermost."""
    seconds, flops = step_seconds(arrangement, Cluster(gpu, gpus_per_node))
    return Estimate(arrangement, gpu, seconds, tuple(stage_memory(arrangement, gpu)), flops)
