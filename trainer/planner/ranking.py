"""All layouts of a space that fit, the fastest first, by closed forms and exactly.

A layout is judged by what its schedule takes at least until it is its turn, and only then is the schedule made. Knows
nothing of how layouts are enumerated, and traces and compiles nothing.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, dropwhile, islice
from typing import Literal

from trainer.planner.arrangement import Arrangement
from trainer.planner.candidates import Candidate, Space
from trainer.planner.estimate import Estimate, estimate
from trainer.planner.flow import Flow, lockstep
from trainer.planner.gpu import Gpu
from trainer.planner.links import Cluster
from trainer.planner.memory import Memory, stage_memory
from trainer.planner.seconds import Step, step_seconds

MARGIN = 0.06
"""Part of what the compiler sets aside by which plans of large models have been below it: docs/planning.md."""


def with_margin(memory: Memory) -> float:
    """Bytes of a plan, were the compiler to set aside as much more as it has done."""
    return (memory.total - memory.overhead) / (1 - MARGIN) + memory.overhead


Flows = Callable[[str, int, int, int], Flow]


@dataclass(frozen=True)
class Choice:
    """A layout, and what is known of its memory."""

    candidate: Candidate
    estimate: Estimate
    traced: Memory | None = None
    """Of the worst stage, from the traced step."""
    compiled: int | None = None
    """Bytes that XLA sets aside, which are all but `overhead`."""

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.estimate.seconds.total

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.estimate.tokens_per_second / self.estimate.arrangement.gpus

    @property
    def memory(self) -> Memory:
        """As predicted, of the worst stage."""
        return self.traced or self.estimate.memory[self.estimate.worst_stage]

    @property
    def bytes_per_gpu(self) -> float:
        """The surest of what is known."""
        return self.memory.total if self.compiled is None else self.compiled + self.memory.overhead

    @property
    def known_by(self) -> Literal["closed forms", "traced", "compiled"]:
        """What `bytes_per_gpu` is from."""
        if self.compiled is not None:
            return "compiled"
        return "closed forms" if self.traced is None else "traced"

    @property
    def fits(self) -> bool:
        return self.bytes_per_gpu <= self.estimate.gpu.limit_bytes

    @property
    def fits_surely(self) -> bool:
        """Whether it would fit even if the compiler set aside as much more as it has done."""
        if self.compiled is not None:
            return self.fits
        return with_margin(self.memory) <= self.estimate.gpu.limit_bytes


class Ranked(Iterator[Choice]):
    """All layouts that fit, the fastest first; of those that differ only in what they keep, the fastest that fits.

    Each waits by seconds that it takes at least. Whichever waits in front is looked at more closely, and waits again.
    """

    def __init__(self, space: Space, cluster: Cluster) -> None:
        self._space, self._cluster = space, cluster
        blocks = _Blocks(space, cluster)
        self._places = count()
        self._waiting = [
            (blocks.at_least(family), next(self._places), 0, family) for family in _families(space, cluster.gpu)
        ]
        heapq.heapify(self._waiting)

    def __next__(self) -> Choice:
        while self._waiting:
            _, place, looked, candidate = heapq.heappop(self._waiting)
            if looked == len(_LOOKS):
                return Choice(candidate, self._estimate(candidate))
            self._wait(place, looked, self._space.thriftier(candidate))
        raise StopIteration

    def keep_less(self, choice: Choice) -> None:
        """Lets the same layout that keeps less wait in the place of a choice that does not fit after all."""
        keeps_more = dropwhile(lambda candidate: candidate != choice.candidate, self._space.thriftier(choice.candidate))
        self._wait(next(self._places), len(_LOOKS) - 1, islice(keeps_more, 1, None))

    def _wait(self, place: int, looked: int, candidates: Iterable[Candidate]) -> None:
        """Lets the first of `candidates` wait that fits, by the next look."""
        flows = _LOOKS[looked]
        if chosen := first_that_fits(self._space, candidates, self._cluster.gpu, flows):
            seconds = step_seconds(_arranged(self._space, chosen, flows), self._cluster)[0].total
            heapq.heappush(self._waiting, (seconds, place, looked + 1, chosen))

    def _estimate(self, candidate: Candidate) -> Estimate:
        return estimate(_arranged(self._space, candidate, lockstep), self._cluster.gpu, self._cluster.gpus_per_node)


class _Blocks:
    """Seconds of one block for one micro-batch, each made once: layouts with equal `tensor` and `micro` share it."""

    def __init__(self, space: Space, cluster: Cluster) -> None:
        self._space, self._cluster = space, cluster
        self._seconds: dict[tuple[int, int], float] = {}

    def at_least(self, family: Candidate) -> float:
        """Seconds that all layers of a family take in a step, with the bubble, whatever it keeps."""
        key = family.tensor, family.micro
        if key not in self._seconds:
            self._seconds[key] = self._of_block(family)
        micro_batches = self._space.num_micro_batches(family)
        rounds = family.virtual_stages * micro_batches + family.pipeline - 1
        return rounds * max(family.layers) * self._seconds[key]

    def _of_block(self, family: Candidate) -> float:
        fastest = next(self._space.thriftier(dataclasses.replace(family, pipeline=1)))
        step = Step(self._space.arrangement(fastest, Flow(1, (1,))), self._cluster)
        once = step.forward + step.backward
        return once.work + step.exposed("tensor", once.tensor, once.work)


def at_least(schedule: str, stages: int, chunks: int, micro_batches: int) -> Flow:
    """What no schedule of this name is below, in rounds and in what is alive; without the table that `lockstep` makes.

    The last stage waits until a micro-batch has passed all others. Interleaved groups are of `stages` or even smaller
    parts, and have passed all chunks but one before the first backward.
    """
    if stages == 1:
        return Flow(micro_batches, (1,))
    smallest = -(-micro_batches // (micro_batches // stages + 1))
    alive = {
        "gpipe": micro_batches,
        "1f1b": min(micro_batches, 2 * stages - 1),
        "interleaved_1f1b": (chunks - 1) * min(stages, smallest) + min(micro_batches, stages),
    }
    return Flow(chunks * micro_batches + stages - 1, (alive.get(schedule, 1),) * stages)


_LOOKS: tuple[Flows, ...] = (at_least, lockstep)


def any_fits(space: Space, gpu: Gpu) -> bool:
    """Whether anything does, however slow."""
    families = (space.thriftier(family) for family in _families(space, gpu))
    hopeful = (first_that_fits(space, family, gpu, at_least) for family in families)
    return any(first_that_fits(space, space.thriftier(each), gpu, lockstep) for each in hopeful if each)


def fewest_bytes(space: Space, gpu: Gpu) -> float:
    """That the layout needs at least which needs least."""
    return min(
        _bytes(space, candidate, gpu, at_least)
        for placement in space.placements()
        for smallest in islice(space.micro_batches(placement), 1)
        for candidate in space.thriftier(smallest)
    )


def first_that_fits(space: Space, candidates: Iterable[Candidate], gpu: Gpu, flows: Flows) -> Candidate | None:
    """Of candidates that differ only in what they keep."""
    try:
        return next((each for each in candidates if _bytes(space, each, gpu, flows) <= gpu.limit_bytes), None)
    except ValueError:  # a schedule that is not for these numbers
        return None


def _families(space: Space, gpu: Gpu) -> Iterator[Candidate]:
    """Layouts that differ in more than what they keep, without those whose state alone is too large."""
    for placement in space.placements():
        if _state(space, placement, gpu) <= gpu.limit_bytes:
            yield from space.micro_batches(placement)


def _state(space: Space, placement: Candidate, gpu: Gpu) -> float:
    """Bytes that a placement takes at least, however small its micro-batches and whatever it keeps."""
    memory = stage_memory(_arranged(space, placement, at_least), gpu)[0]
    return memory.weights + memory.gradients + memory.master + memory.optimizer + gpu.reserved_bytes


def _arranged(space: Space, candidate: Candidate, flows: Flows) -> Arrangement:
    micro_batches = space.num_micro_batches(candidate)
    flow = flows(candidate.schedule, candidate.pipeline, candidate.virtual_stages, micro_batches)
    return space.arrangement(candidate, flow)


def _bytes(space: Space, candidate: Candidate, gpu: Gpu, flows: Flows) -> float:
    stages = set(stage_memory(_arranged(space, candidate, flows), gpu))  # in lockstep all are alike
    return max(stage.total for stage in stages)
