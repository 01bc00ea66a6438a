"""What one block, or the head, takes on one device: FLOPs, and seconds by what they are spent on.

A roofline: a matmul takes as long as its FLOPs or its bytes, whichever is longer, and small ones leave multiprocessors
idle. Collectives are in full here; what hides them is decided where the step is put together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trainer.planner.arrangement import Arrangement
from trainer.planner.gpu import Gpu
from trainer.planner.links import Group
from trainer.planner.sizes import Block, block, vocab

TILE = 128 * 256
"""Elements of a matmul's result that a multiprocessor makes at a time."""
DEPTH_HALF = 128
"""Contracted elements for which a tile takes as long to start and to store as to multiply."""
FLASH_BACKWARD = 0.8
"""FLOP/s of a flash attention's backward over those of its forward."""
SCORE_BACKWARD = 11 / 9
"""Bytes of the elementwise work on materialised scores in a backward, over those of a forward."""
STREAM_FORWARD, STREAM_BACKWARD = 11, 19
"""How often elementwise work reads or writes the residual stream in a block: 2 norms, and 2 sums after dropout."""
KERNELS_FORWARD, KERNELS_BACKWARD = 12, 20
"""Of that work, and of what lies between the matmuls."""
LOSS_BYTES = 30
"""Read and written for each logit: as it is made, in float32 for softmax and its sum, and again for its gradient."""


@dataclass(frozen=True)
class Cost:
    """FLOPs that are executed, and seconds."""

    flops: float = 0.0
    matmul: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    tensor: float = 0.0
    """Collectives over `tensor`, were nothing beside them."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.matmul + other.matmul,
            self.attention + other.attention,
            self.elementwise + other.elementwise,
            self.tensor + other.tensor,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(
            self.flops * times,
            self.matmul * times,
            self.attention * times,
            self.elementwise * times,
            self.tensor * times,
        )

    @property
    def work(self) -> float:
        """Seconds of the device itself."""
        return self.matmul + self.attention + self.elementwise


@dataclass(frozen=True)
class Costs:
    """Costs of the parts of a step for one micro-batch of an arrangement."""

    arrangement: Arrangement
    gpu: Gpu
    tensor: Group

    @cached_property
    def block(self) -> Block:
        return block(self.arrangement.model, self.arrangement.tensor)

    @cached_property
    def forward(self) -> Cost:
        """Of one block."""
        tokens = self.arrangement.tokens
        matmuls = sum((self._matmul(tokens, *matrix) for matrix in self.block.matrices), Cost())
        between = 2 * (self.block.qkv + self.block.attention) + self.block.ffn + self._activation
        elementwise = self._elementwise(STREAM_FORWARD, between, KERNELS_FORWARD)
        return matmuls + self._attention_forward + elementwise + self._exchange(2)

    @cached_property
    def backward(self) -> Cost:
        """Of one block: gradients of its input and of its weights."""
        tokens = self.arrangement.tokens
        of_input = (self._matmul(tokens, outputs, inputs) for inputs, outputs in self.block.matrices)
        of_weight = (self._matmul(inputs, tokens, outputs) for inputs, outputs in self.block.matrices)
        matmuls = sum((*of_input, *of_weight), Cost())
        between = 3 * self.block.qkv + 2 * self.block.attention + 3 * self.block.ffn + self._activation
        elementwise = self._elementwise(STREAM_BACKWARD, between, KERNELS_BACKWARD)
        return matmuls + self._attention_backward + elementwise + self._exchange(2)

    @cached_property
    def again(self) -> Cost:
        """Of one block: what its backward pass repeats of its forward pass."""
        a, forward, attention = self.arrangement, self.forward, self._attention_forward
        part = a.practice.again[a.recompute]
        repeated = Cost(
            flops=part.matmul * (forward.flops - attention.flops) + part.attention * attention.flops,
            matmul=part.matmul * forward.matmul,
            attention=part.attention * attention.attention,
            elementwise=part.elementwise * forward.elementwise,
            tensor=part.tensor * forward.tensor,
        )
        if not part.last:
            repeated += (self._matmul(a.tokens, self._activation, self.block.hidden) + self._exchange(0.5)) * -1
        return repeated

    @cached_property
    def edge(self) -> Cost:
        """Of embedding, head and loss, forward and backward, on one device that holds its share of them."""
        a = self.arrangement
        rows = vocab(a)
        forward = self._matmul(a.tokens, a.model.hidden, rows)
        backward = self._matmul(a.tokens, rows, a.model.hidden) + self._matmul(a.model.hidden, a.tokens, rows)
        loss = LOSS_BYTES * a.tokens * rows / self.gpu.bytes_per_second
        return forward + backward + Cost(elementwise=loss) + self._exchange(2)

    @property
    def _activation(self) -> float:
        """Width of the MLP's activation function's result."""
        return self.block.ffn / self.block.num_into_ffn

    def _matmul(self, rows: float, inner: float, columns: float) -> Cost:
        """[rows, inner] x [inner, columns]."""
        itemsize = self.arrangement.itemsize
        flops = 2 * rows * inner * columns
        waves = rows * columns / (TILE * self.gpu.multiprocessors)
        used = waves / (waves + 0.5) * inner / (inner + DEPTH_HALF)  # the last wave is half full, on average
        moved = (rows * inner + inner * columns + rows * columns) * itemsize
        seconds = max(flops / (self.gpu.flops(itemsize) * used), moved / self.gpu.bytes_per_second)
        return Cost(flops=flops, matmul=seconds + self.gpu.launch_seconds)

    @cached_property
    def _attention_forward(self) -> Cost:
        return self._attention(2, self.arrangement.practice.score_bytes)

    @cached_property
    def _attention_backward(self) -> Cost:
        return self._attention(4, self.arrangement.practice.score_bytes * SCORE_BACKWARD)

    def _attention(self, matmuls: int, score_bytes: float) -> Cost:
        """The attention core, as so many matmuls of [S, K] x [K, S] for each head and sequence: 2 are a forward."""
        a, gpu = self.arrangement, self.gpu
        keys = min(a.model.window or a.sequence, a.sequence)
        scores = a.micro_batch * self.block.heads * a.sequence * keys
        of_one = 2 * scores * a.model.dim_per_head
        if a.practice.attention == "flash":
            extra, speed = (a.practice.flash_backward / 2, FLASH_BACKWARD) if matmuls > 2 else (1, 1)
            flops = of_one * extra * (1 - keys / (2 * a.sequence)) * 2
            seconds = flops / (gpu.flops(a.itemsize) * gpu.efficiency.attention * speed)
            return Cost(flops=flops, attention=seconds + gpu.launch_seconds)
        written = a.itemsize * scores / gpu.bytes_per_second
        seconds = matmuls * max(of_one / gpu.flops(a.itemsize), written) + scores * score_bytes / gpu.bytes_per_second
        return Cost(flops=matmuls * of_one, attention=seconds + matmuls * gpu.launch_seconds)

    def _elementwise(self, passes: int, between: float, kernels: int) -> Cost:
        """`passes` over the residual stream, and `between` the matmuls so many elements read or written a token."""
        a = self.arrangement
        moved = a.tokens * (passes * a.region * a.model.hidden + between) * a.itemsize
        return Cost(elementwise=moved / self.gpu.bytes_per_second + kernels * self.gpu.launch_seconds)

    def _exchange(self, times: float) -> Cost:
        """All-reduces of the residual stream over `tensor`; under sequence parallelism, scatters and gathers of it."""
        a = self.arrangement
        of_part = self.tensor.all_reduce(a.tokens * a.model.hidden * a.itemsize / a.parts)
        return Cost(tensor=times * a.parts * of_part)
