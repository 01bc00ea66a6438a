"""The attentions that are measured, and what is counted as their work. Touches no device.

Shapes: `B` batch, `S` sequence, `H` heads, `K` head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainer.planner.gpu import Gpu

TOKENS, HIDDEN = 16384, 2048
CONVENTION = "FLOPs: forward 4·B·S²·H·K, halved as it is causal; backward 2.5 x that, whatever is computed again"


class Work(NamedTuple):
    """What something has to compute and to move at least."""

    flops: float
    num_bytes: float

    def seconds(self, gpu: Gpu) -> float:
        """The roofline: by the data sheet's FLOP/s or its bytes/s, whichever takes longer."""
        return max(self.flops / gpu.peak_flops, self.num_bytes / gpu.memory_bandwidth)

    def is_bound_by_memory(self, gpu: Gpu) -> bool:
        return self.num_bytes / gpu.memory_bandwidth > self.flops / gpu.peak_flops


@dataclass(frozen=True)
class Shape:
    """Causal attention of sequences to themselves, as many key heads as query heads."""

    batch: int
    sequence: int
    heads: int
    head_dim: int
    dtype: str = "bfloat16"
    """Of 16 bits: the roofline is that of these."""

    @property
    def dims(self) -> tuple[int, int, int, int]:
        """[B, S, H, K], of queries, keys, values and the output."""
        return self.batch, self.sequence, self.heads, self.head_dim

    @property
    def forward(self) -> Work:
        """Reads queries, keys and values; writes the output and log-sum-exp."""
        flops = 4 * self.batch * self.sequence**2 * self.heads * self.head_dim / 2
        return Work(flops, 4 * self._array + self._per_query)

    @property
    def backward(self) -> Work:
        """Reads those five and the output's gradient; writes three gradients."""
        return Work(2.5 * self.forward.flops, 8 * self._array + self._per_query)

    @property
    def _array(self) -> int:
        """Bytes of one array of `dims`."""
        return 2 * self.batch * self.sequence * self.heads * self.head_dim

    @property
    def _per_query(self) -> int:
        """Bytes of a float32 for each query."""
        return 4 * self.batch * self.sequence * self.heads


SHAPES = [
    Shape(TOKENS // sequence, sequence, HIDDEN // head_dim, head_dim)
    for head_dim in (64, 128)
    for sequence in (2048, 8192)
]
"""Those of FlashAttention's own benchmark: 16k tokens, a hidden size of 2,048."""
