"""Bytes that each GPU holds at the fullest moment of a step, by what they are, for every pipeline stage.

Closed forms of what a trainer keeps (`practice`) and of what is alive at once (`flow`); the traced step knows better,
for ours. Knows the GPU only as what its driver holds.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from trainer.off_device import gradients_passing
from trainer.planner.arrangement import Arrangement
from trainer.planner.gpu import Gpu
from trainer.planner.kept import bytes_kept, bytes_on_device, bytes_on_host, scores
from trainer.planner.sizes import Block, Stage, block, stages, vocab


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU."""

    weights: float
    """The copy that layers compute with, where it is held for the whole step."""
    gradients: float
    """Their sum, and those of a micro-batch beside it."""
    master: float
    """Float32 weights."""
    optimizer: float
    """Moments, and a float32 copy of gradients that are summed in less."""
    activations: float
    """Kept for backward passes, and those of the block at work."""
    logits: float
    gathered: float
    """Weights fetched for the part at work; where they are streamed from the host, gradients on their way there too."""
    pipeline: float
    """Messages between stages."""
    collectives: float
    """Copies of what is reduced or gathered."""
    overhead: float
    """The driver, libraries, NCCL, and what the allocator wastes."""

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))


def stage_memory(arrangement: Arrangement, gpu: Gpu) -> list[Memory]:
    """Of each pipeline stage. In lockstep all stages run one program, and hold alike.

    Layers that are streamed take so little that what one takes at work is not there at the same time as what embedding
    and head take: the fuller moment counts.
    """
    of_block, held = block(arrangement.model, arrangement.tensor), stages(arrangement)
    moments = (_AtLayer, _AtEnds) if arrangement.streamed else (_Parts,)

    def memory(index: int) -> Memory:
        parts = (moment(arrangement, of_block, held[index], index) for moment in moments)
        allocator, reserved = arrangement.practice.allocator, gpu.reserved_bytes
        return max((_with_overhead(part, allocator, reserved) for part in parts), key=lambda memory: memory.total)

    if arrangement.practice.lockstep:
        return [memory(0)] * len(held)
    return [memory(index) for index in range(len(held))]


def _with_overhead(parts: _Parts, allocator: float, reserved: float) -> Memory:
    used = {field.name: getattr(parts, field.name)() for field in fields(Memory) if field.name != "overhead"}
    return Memory(**used, overhead=(allocator - 1) * sum(used.values()) + reserved)


@dataclass(frozen=True)
class _Parts:
    """One stage; each method is a field of `Memory`."""

    a: Arrangement
    block: Block
    stage: Stage
    index: int

    @property
    def elements(self) -> float:
        return self.stage.elements

    @property
    def _matrix(self) -> float:
        """Of a layer's largest."""
        return max(inputs * outputs for inputs, outputs in self.block.matrices)

    @property
    def _elements(self) -> float:
        """Without those that are streamed."""
        return self.elements - self.stage.streamed(self.a)

    @property
    def _offloaded(self) -> float:
        """Of these, those whose masters and moments are not on the device."""
        return self.elements * self.a.offloaded - self.stage.streamed(self.a)

    def weights(self) -> float:
        a = self.a
        is_master = a.itemsize == 4 and a.sharded == 0
        gathered = 0.0 if a.sharded == 3 or is_master else self.elements * (1 - a.offloaded)
        of_offloaded = 1 / a.shares + (a.sharded in (1, 2))  # at rest, and gathered for the step
        return (gathered + self._offloaded * of_offloaded) * a.itemsize

    def gradients(self) -> float:
        a = self.a
        shares = a.data if a.sharded >= 2 else 1
        of_sum = self._elements * a.sum_itemsize / shares
        if a.sharded == 1:  # that leave the step
            of_sum += self._offloaded * a.sum_itemsize / a.shares
        itemsize = a.itemsize if a.sharded < 2 else a.sum_itemsize  # what is scattered is summed in that
        apart = a.practice.micro_gradients and a.micro_batches > 1 and (a.sharded >= 2 or a.sum_itemsize != a.itemsize)
        of_micro_batch = self._elements * itemsize / shares / (a.chunks if a.practice.lockstep else 1) if apart else 0
        # XLA copies them once more where a stage may skip a layer.
        copies = 2 if a.practice.lockstep and len(set(a.layers)) > 1 else 1
        return of_sum + copies * of_micro_batch + (0.0 if apart else self._cast)

    @property
    def _cast(self) -> float:
        """Of gradients that leave the step, the one stack of layers' that is there in the compute dtype, to be cast."""
        a = self.a
        is_cast = a.practice.micro_gradients and a.sharded < 2 and a.itemsize < a.sum_itemsize
        if not is_cast or a.streamed or not a.offloaded:
            return 0.0
        return self.stage.layers * self._matrix * a.itemsize

    def master(self) -> float:
        return 4 * self.elements * (1 - self.a.offloaded) / self.a.shares

    def optimizer(self) -> float:
        copies = 1 if self.a.sum_itemsize < 4 else 0
        return 4 * (self.a.moments + copies) * self.elements * (1 - self.a.offloaded) / self.a.shares

    def activations(self) -> float:
        a = self.a
        kept = bytes_on_device(a, self.block)
        alive = a.flow.alive[self.index]
        at_work = bytes_kept(a, self.block, a.practice.kept["none"])
        at_work += scores(a, self.block) * a.practice.scores_at_work + bytes_on_host(a, self.block)  # on their way
        layers = self.stage.layers / a.chunks
        if a.keeps_inputs:
            return alive * self.message + layers * kept + at_work
        return alive * layers * kept + at_work

    def logits(self) -> float:
        a, practice = self.a, self.a.practice
        if not (practice.lockstep or self.index == a.pipeline - 1):
            return 0.0
        tokens = min(a.tokens, practice.loss_chunk or a.tokens)
        return tokens * vocab(a) * practice.loss_bytes

    def gathered(self) -> float:
        a = self.a
        if not a.streamed:
            return self.part * a.itemsize if a.sharded == 3 else 0.0
        at_work = self.part if a.sharded == 3 else self.block.elements
        return at_work * a.itemsize + gradients_passing(a.micro_batches) * 4 * self._matrix / a.shares

    def pipeline(self) -> float:
        # One on its way each way, and one in each inbox. Asynchronous stages keep what arrives as the block's input.
        return 4 * self.message if self.a.pipeline > 1 and self.a.practice.lockstep else 0.0

    def collectives(self) -> float:
        a = self.a
        scattered = self.part * a.reduce_itemsize if a.sharded >= 2 else 0.0
        buckets = min(a.practice.bucket, self.elements) * (a.sum_itemsize + a.itemsize) if a.data > 1 else 0.0
        return scattered + buckets

    @property
    def part(self) -> float:
        """Elements of the largest part that is gathered or scattered at once: a block, the embedding or the head."""
        return max(self.block.elements, self.stage.embedding, self.stage.head)

    @property
    def message(self) -> float:
        """Bytes of the residual stream of a micro-batch, as a device holds it."""
        return self.a.tokens * self.a.region * self.a.model.hidden * self.a.itemsize


class _AtLayer(_Parts):
    """While a layer is at work."""

    def logits(self) -> float:
        return 0.0

    def collectives(self) -> float:
        return self.block.elements * self.a.reduce_itemsize if self.a.sharded >= 2 else 0.0


class _AtEnds(_Parts):
    """While the head or the embedding is at work."""

    def activations(self) -> float:
        return self.a.flow.alive[self.index] * self.stage.layers * bytes_on_device(self.a, self.block)

    def gathered(self) -> float:
        return self._table * self.a.itemsize if self.a.sharded == 3 else 0.0

    def gradients(self) -> float:
        return self._elements * self.a.sum_itemsize / (self.a.data if self.a.sharded >= 2 else 1)

    def collectives(self) -> float:
        """Gradients of tables that are whole, float32, and with micro-batches a shard of one, by XLA's buffers for an
        H100. It does the first two micro-batches side by side where they are all."""
        a, tied = self.a, self.a.model.tied
        if a.sharded < 2:
            return self._table * 4 * (0 if a.micro_batches <= 1 else 1 + tied)
        whole = {1: 1, 2: 3}.get(int(a.micro_batches), 2)
        return self._table * 4 * (whole + (1 / a.data if a.micro_batches > 1 else 0))

    @property
    def _table(self) -> float:
        """Elements of the embedding or the head."""
        return max(self.stage.embedding, self.stage.head)
