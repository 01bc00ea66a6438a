"""The fastest layouts of a config on GPUs that are not there, found among all that can be placed.

Ranked by closed forms, best first and exactly: a layout is judged by what its schedule takes at least until it is its
turn, and only then is the schedule made. The best few are traced. Knows nothing of how layouts are enumerated.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from trainer.config import Config
from trainer.errors import ConfigError
from trainer.planner.arrangement import Arrangement
from trainer.planner.candidates import Candidate, Space
from trainer.planner.estimate import Estimate, estimate
from trainer.planner.flow import Flow, lockstep
from trainer.planner.gpu import KINDS, Gpu, load
from trainer.planner.links import Cluster
from trainer.planner.memory import stage_memory
from trainer.planner.plan import Plan, plan
from trainer.planner.seconds import Step, step_seconds

TRACED = 3
"""Layouts whose memory is confirmed by tracing the step."""
WORTH_IT = 0.01
"""Gains that are told, as a part of a step."""
GIB = 2**30

Flows = Callable[[str, int, int, int], Flow]


@dataclass(frozen=True)
class Choice:
    """A layout that fits."""

    candidate: Candidate
    estimate: Estimate
    plan: Plan | None = None
    """Where it was traced."""

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.estimate.seconds.total

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.estimate.tokens_per_second / self.estimate.arrangement.gpus


@dataclass(frozen=True)
class Faster:
    """What would make the winner faster."""

    what: str
    gain: float
    """Tokens/s more, as a part of those of the winner."""


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    gpu: Gpu
    gpus: int
    gpus_per_node: int
    fixed: frozenset[str]
    """Settings that were not searched."""
    best: list[Choice]
    """Of each mesh the fastest layout that fits, the fastest first: the winner."""
    refused: list[Choice]
    """Faster by closed forms, and found by tracing not to fit."""
    faster: list[Faster]

    @property
    def winner(self) -> Choice:
        return self.best[0]


def search(
    config: Config,
    gpu: str = "h100",
    gpus: int = 8,
    gpus_per_node: int = 8,
    top: int = 10,
    fixed: frozenset[str] = frozenset(),
) -> Found:
    """The `top` fastest meshes for `config` on `gpus` GPUs of a kind, and their layouts.

    Settings in `fixed`, of `candidates.SEARCHED`, stay as the config has them.

    Raises:
        ConfigError: an unknown GPU, nothing can be placed on so many, or nothing fits: by how much, and what helps.
    """
    for name, number in (("gpus", gpus), ("gpus_per_node", gpus_per_node), ("top", top)):
        if number < 1:
            raise ConfigError(f"{name}={number}: use 1 or more")
    space, cluster = Space(config, gpus, fixed), Cluster(load(gpu), gpus_per_node)
    if next(space.placements(), None) is None:
        raise ConfigError(_unplaced(space))
    best: list[Choice] = []
    refused: list[Choice] = []
    for choice in ranked(space, cluster):
        if any(choice.candidate.mesh == better.candidate.mesh for better in best):
            continue
        if len(best) < TRACED:
            laid_out = Config.from_dict(choice.candidate.on(config.to_dict()))
            choice = dataclasses.replace(choice, plan=plan(laid_out, gpu, gpus, gpus_per_node))
        (best if choice.plan is None or choice.plan.fits else refused).append(choice)
        if len(best) == top:
            break
    if not best:
        raise ConfigError(_too_large(space, cluster))
    return Found(cluster.gpu, gpus, gpus_per_node, fixed, best, refused, list(_faster(space, cluster, best[0])))


def ranked(space: Space, cluster: Cluster) -> Iterator[Choice]:
    """All layouts that fit, the fastest first; of those that differ only in what they keep, the fastest that fits.

    Each waits by seconds that it takes at least. Whichever waits in front is looked at more closely, and waits again.
    """
    blocks = _Blocks(space, cluster)
    waiting = [
        (blocks.at_least(family), place, 0, family) for place, family in enumerate(_families(space, cluster.gpu))
    ]
    heapq.heapify(waiting)
    looks: tuple[Flows, ...] = (at_least, lockstep)
    while waiting:
        _, place, looked, candidate = heapq.heappop(waiting)
        if looked == len(looks):
            yield Choice(candidate, estimate(_arranged(space, candidate, lockstep), cluster.gpu, cluster.gpus_per_node))
        elif chosen := _fastest(space, candidate, cluster.gpu, looks[looked]):
            seconds = _seconds(space, chosen, cluster, looks[looked])
            heapq.heappush(waiting, (seconds, place, looked + 1, chosen))


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


def _families(space: Space, gpu: Gpu) -> Iterator[Candidate]:
    """Layouts that differ in more than what they keep, without those whose state alone is too large."""
    for placement in space.placements():
        if _state(space, placement, gpu) <= gpu.memory_bytes:
            yield from space.micro_batches(placement)


def _state(space: Space, placement: Candidate, gpu: Gpu) -> float:
    """Bytes that a placement takes at least, however small its micro-batches and whatever it keeps."""
    memory = stage_memory(_arranged(space, placement, at_least), gpu)[0]
    return memory.weights + memory.gradients + memory.master + memory.optimizer + gpu.reserved_bytes


def _fastest(space: Space, family: Candidate, gpu: Gpu, flows: Flows) -> Candidate | None:
    """The first way to keep less with which the family fits."""
    for candidate in space.thriftier(family):
        try:
            if _bytes(space, candidate, gpu, flows) <= gpu.memory_bytes:
                return candidate
        except ValueError:  # a schedule that is not for these numbers
            return None
    return None


def _arranged(space: Space, candidate: Candidate, flows: Flows) -> Arrangement:
    micro_batches = space.num_micro_batches(candidate)
    flow = flows(candidate.schedule, candidate.pipeline, candidate.virtual_stages, micro_batches)
    return space.arrangement(candidate, flow)


def _bytes(space: Space, candidate: Candidate, gpu: Gpu, flows: Flows) -> float:
    stages = set(stage_memory(_arranged(space, candidate, flows), gpu))  # in lockstep all are alike
    return max(stage.total for stage in stages)


def _seconds(space: Space, candidate: Candidate, cluster: Cluster, flows: Flows) -> float:
    return step_seconds(_arranged(space, candidate, flows), cluster)[0].total


def _faster(space: Space, cluster: Cluster, winner: Choice) -> Iterator[Faster]:
    """Each on its own, by closed forms; of the layouts that there would be then, the best."""
    gpu, config = cluster.gpu, space.config
    network = dataclasses.replace(gpu, network_bandwidth=2 * gpu.network_bandwidth)
    memory = dataclasses.replace(gpu, memory_bytes=2 * gpu.memory_bytes)
    batch = 2 * config.batch.global_
    larger = Config.from_dict(config.to_dict(), {"batch.global": batch})
    wishes = {
        "with a network twice as fast": (space, dataclasses.replace(cluster, gpu=network)),
        f"with GPUs of {memory.memory_bytes / GIB:.0f} GiB": (space, dataclasses.replace(cluster, gpu=memory)),
        f"with batch.global={batch}": (dataclasses.replace(space, config=larger), cluster),
    }
    if space.fixed:
        what = f"without {', '.join(sorted(space.fixed))} being fixed"
        wishes[what] = dataclasses.replace(space, fixed=frozenset()), cluster
    before = winner.estimate.tokens_per_second
    for what, (wished, on) in wishes.items():
        then = next(ranked(wished, on)).estimate
        gain = then.tokens_per_second / before - 1
        if gain >= WORTH_IT:
            yield Faster(what, gain)


def _unplaced(space: Space) -> str:
    fixed = f" with {', '.join(sorted(space.fixed))} as they are" if space.fixed else ""
    return (
        f"gpus={space.gpus}: no mesh of so many can be made{fixed}: mesh.tensor must divide model.heads="
        f"{space.config.model.heads}, mesh.pipeline can be at most model.layers={space.config.model.layers}, and "
        f"mesh.replica x mesh.data must divide batch.global={space.config.batch.global_}; change one, or --gpus"
    )


def _too_large(space: Space, cluster: Cluster) -> str:
    """By how much the nearest misses, and what of more GPUs, larger GPUs and fewer fixed settings is enough."""
    thriftiest = (
        _bytes(space, candidate, cluster.gpu, at_least)
        for placement in space.placements()
        for smallest in islice(space.micro_batches(placement), 1)
        for candidate in space.thriftier(smallest)
    )
    needed, has = min(thriftiest), cluster.gpu.memory_bytes
    return (
        f"nothing fits on {space.gpus} x {cluster.gpu.name}: the nearest needs {needed / GIB:.1f} GiB of each, "
        f"{(needed - has) / GIB:.1f} more than there are; would fit: "
        f"{'; '.join(_helps(space, cluster)) or 'none of 16 times as many, larger GPUs, or other settings'}"
    )


def _helps(space: Space, cluster: Cluster) -> Iterator[str]:
    if space.fixed and _any_fits(dataclasses.replace(space, fixed=frozenset()), cluster.gpu):
        yield f"without {', '.join(sorted(space.fixed))} being fixed"
    counts = (space.gpus * 2**power for power in range(1, 5))
    enough = (count for count in counts if _any_fits(dataclasses.replace(space, gpus=count), cluster.gpu))
    yield from (f"--gpus {count}" for count in islice(enough, 1))
    yield from (f"--gpu {kind}" for kind in KINDS if _any_fits(space, load(kind)))


def _any_fits(space: Space, gpu: Gpu) -> bool:
    hopeful = (family for family in _families(space, gpu) if _fastest(space, family, gpu, at_least))
    return any(_fastest(space, family, gpu, lockstep) for family in hopeful)
