"""How long a step takes, by what the time goes into: work, what is sent and not hidden, and waiting.

Puts together what a block costs (`cost`), how micro-batches flow through stages (`flow`), and what a trainer hides
(`practice`). The slowest stage sets the pace of all.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property

from trainer.planner.arrangement import Arrangement
from trainer.planner.cost import Cost, Costs
from trainer.planner.host_update import HostUpdate, host_update, layers_lane
from trainer.planner.kept import bytes_on_host
from trainer.planner.links import Cluster, Group
from trainer.planner.practice import Hidden
from trainer.planner.sizes import Stage, stages


@dataclass(frozen=True)
class Seconds:
    """Of one step, on the slowest stage. What is sent counts as far as nothing hides it."""

    matmul: float
    attention: float
    elementwise: float
    accumulation: float
    """Adding each micro-batch's gradients to their sum."""
    optimizer: float
    tensor: float
    """Collectives of tensor parallelism."""
    stages: float
    """Activations on their way between stages."""
    data: float
    """Weights gathered and gradients reduced, over `data` and `replica`."""
    host: float
    """Activations to the host and back; streamed weights from there or from NVMe, and their gradients back."""
    host_update: float
    """The update of what is offloaded, with gradients on their way to the host and weights on theirs back."""
    bubble: float
    """Waiting for other stages."""

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))


@dataclass(frozen=True)
class Step:
    """One step on one cluster."""

    a: Arrangement
    cluster: Cluster

    def seconds(self) -> Seconds:
        a = self.a
        chunk = (self.forward + self.backward) * a.depth
        micro_batch = chunk * a.chunks + self.edge(chunk)
        pace = chunk.work + self.exposed("tensor", chunk.tensor, chunk.work) + self.accumulation / a.chunks
        sent = self.sent * a.flow.rounds / a.micro_batches
        return Seconds(
            matmul=micro_batch.matmul * a.micro_batches,
            attention=micro_batch.attention * a.micro_batches,
            elementwise=micro_batch.elementwise * a.micro_batches,
            accumulation=self.accumulation * a.micro_batches,
            optimizer=self.optimizer,
            tensor=self.exposed("tensor", micro_batch.tensor, micro_batch.work) * a.micro_batches,
            stages=(self.exposed("stages", sent, micro_batch.work) + self.spread) * a.micro_batches,
            data=self.data,
            host=(self.host + self.streamed) * a.micro_batches,
            host_update=self.host_update.seconds,
            bubble=(a.flow.rounds - a.chunks * a.micro_batches) * pace,
        )

    def flops(self) -> float:
        """That all devices execute."""
        a = self.a
        of_layers = a.model.layers * (self.forward + self.backward).flops
        of_edge = self.costs.edge.flops * (a.pipeline if a.spread else 1)
        return a.tensor * a.data * a.replica * a.micro_batches * (of_layers + of_edge)

    def exposed(self, what: Hidden, sent: float, work: float) -> float:
        """What is left of the seconds `sent` where the trainer hides them behind seconds of `work`."""
        if what not in self.a.hides:
            return sent
        return sent - self.cluster.gpu.efficiency.overlap * min(sent, work)

    def edge(self, chunk: Cost) -> Cost:
        """What embedding and head add to the pace of a micro-batch.

        In lockstep all stages wait for them, or share them. Asynchronous stages are as slow as the slowest, and the
        last one is it only as far as the head is more than the layers that it lacks.
        """
        a, edge = self.a, self.costs.edge
        if a.practice.lockstep:
            return edge
        layers = [sum(a.layers[stage :: a.pipeline]) for stage in range(a.pipeline)]
        lacking = (chunk.work + chunk.tensor) * (max(layers) - layers[-1]) / a.depth
        return edge * max(0.0, 1 - lacking / (edge.work + edge.tensor))

    @cached_property
    def costs(self) -> Costs:
        return Costs(self.a, self.cluster.gpu, self.cluster.group(self.a.tensor, 1))

    @cached_property
    def forward(self) -> Cost:
        """Of one block."""
        return self.costs.forward

    @cached_property
    def backward(self) -> Cost:
        """Of one block, with all that it repeats."""
        repeated = self.costs.again + self.costs.forward if self.a.keeps_inputs else self.costs.again
        return repeated + self.costs.backward

    @cached_property
    def fullest(self) -> Stage:
        """The stage that holds most."""
        return max(stages(self.a), key=lambda stage: stage.elements)

    @property
    def elements(self) -> float:
        """Parameters of a device of that stage."""
        return self.fullest.elements

    @cached_property
    def host_update(self) -> HostUpdate:
        return host_update(self.a, self.fullest, self.cluster.gpu)

    @cached_property
    def across(self) -> Group:
        """A device of each stage."""
        return self.cluster.group(self.a.pipeline, self.a.tensor * self.a.data * self.a.replica)

    @cached_property
    def sent(self) -> float:
        """Seconds of an activation and a cotangent between stages, for one chunk. Tensor ranks send a share each."""
        return 2 * self.across.send(self.message)

    @cached_property
    def spread(self) -> float:
        """Seconds of what a micro-batch's embedding and head reduce over the stages, where they are cut over them."""
        return 4 * self.across.all_reduce(self.message) if self.a.spread else 0.0

    @cached_property
    def message(self) -> float:
        """Bytes of a micro-batch's residual stream on one device, cut over `tensor`."""
        return self.a.tokens * self.a.model.hidden * self.a.itemsize / self.a.tensor

    @cached_property
    def accumulation(self) -> float:
        """Seconds of adding the gradients of one micro-batch to their sum."""
        a = self.a
        if a.micro_batches <= 1:
            return 0.0
        moved = 2 * a.sum_itemsize + (0 if a.practice.adds == "fused" else a.itemsize)
        if a.practice.adds == "cast" and a.sum_itemsize != a.itemsize:
            moved += 2 * a.sum_itemsize
        return moved * self.elements / self.cluster.gpu.bytes_per_second

    @cached_property
    def optimizer(self) -> float:
        """Seconds of the norm, and of the update: masters and moments are read and written, weights written.

        The norm of streamed gradients is taken as they are made.
        """
        a = self.a
        state = (2 * 4 * (1 + a.moments) + 4 + a.itemsize) * (1 - a.offloaded)
        moved = (self.elements - self.fullest.streamed(a)) * a.sum_itemsize + self.elements * state / a.shares
        return moved / self.cluster.gpu.bytes_per_second

    @cached_property
    def data(self) -> float:
        """Seconds of gathering weights and reducing gradients that nothing hides. `sharding.zero` tells when."""
        a = self.a
        shares, copies = self.cluster.group(a.data, a.tensor), self.cluster.group(a.replica, a.tensor * a.data)
        weights = shares.gather(self.elements * a.itemsize)
        gradients = shares.gather(self.elements * a.reduce_itemsize)
        if a.sharded == 0 or (a.sharded == 1 and a.practice.reduces_whole):
            gradients *= 2  # an all-reduce
        between = copies.all_reduce(self.elements * a.reduce_itemsize / a.shares)
        return self._gathered(weights) + self._reduced(gradients) + between

    @cached_property
    def host(self) -> float:
        """Seconds of one micro-batch's activations on their way to the host in its forward pass, as far as nothing
        hides them, and back in its backward pass."""
        a, layers = self.a, self.a.depth * self.a.chunks
        if not (kept := bytes_on_host(a, self.costs.block)):
            return 0.0
        once = layers * kept / self.cluster.gpu.of_host("host_bandwidth")
        return self.exposed("to_host", once, self.forward.work * layers) + once

    @cached_property
    def streamed(self) -> float:
        """Seconds of one micro-batch's weights from the host, for its forward and its backward pass, and of gradients:
        their sum so far from there and, as far as nothing hides it, the new one back. By XLA's schedule for an H100, a
        layer begins when nearly all is there that it needs. A disk is at work beside all of that, and what is beside
        its layers waits for them."""
        a = self.a
        if not (shards := self.fullest.streamed(a) / a.shares):
            return 0.0
        sums = 4 * shards / self.cluster.gpu.of_host("host_bandwidth")
        weights = 2 * a.itemsize * shards / self.cluster.gpu.of_host("host_bandwidth")
        not_first, layers = 1 - 1 / a.micro_batches, a.depth * a.chunks
        lane = layers_lane(a, self.fullest, self.cluster.gpu)
        if lane is None:
            return weights + sums * not_first + self.exposed("to_host", sums, self.backward.work * layers)
        link = weights + sums * (1 + not_first)  # in turn with the device's work
        return link + max(0.0, lane.seconds - link - (self.forward + self.backward).work * layers)

    def _gathered(self, once: float) -> float:
        """What is left of gathers that take the seconds `once` each: at the start of a step, or for every use."""
        a, layers = self.a, self.a.depth * self.a.chunks
        if a.sharded < 3:
            return self.exposed("ends", once, self.forward.work * layers) if a.sharded else 0.0
        passes = 3 if a.keeps_inputs else 2
        work = (self.forward + self.backward).work * layers
        return self.exposed("layers", passes * once, work) * a.micro_batches

    def _reduced(self, once: float) -> float:
        """Likewise of reductions: at the end of a step, or in every backward."""
        a, work = self.a, self.backward.work * self.a.depth * self.a.chunks
        if a.sharded < 2:
            return self.exposed("ends", once, work)
        return self.exposed("layers", once, work) * a.micro_batches


def step_seconds(arrangement: Arrangement, cluster: Cluster) -> tuple[Seconds, float]:
    """The seconds of a step, and the FLOPs that all devices together execute in it."""
    step = Step(arrangement, cluster)
    return step.seconds(), step.flops()
