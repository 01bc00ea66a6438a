"""What else could be done with the same GPUs: other micro-batches, and the fastest layouts of other meshes.

By the closed forms of `trainer.planner.estimate` alone, as `meshwright search` ranks them: a few seconds for any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from trainer.config import Config
from trainer.divisors import divisors
from trainer.planner.arrangement import Arrangement
from trainer.planner.candidates import Space
from trainer.planner.estimate import Estimate, estimate
from trainer.planner.gpu import Gpu
from trainer.planner.links import Cluster
from trainer.planner.ranking import Ranked

NEIGHBOURS = 3
"""Micro-batches that are shown on either side of the config's own."""
MESHES = 5


@dataclass(frozen=True)
class Layout:
    """One way to run the config."""

    named: str
    """The schedule, where there are stages."""
    estimate: Estimate
    own: bool
    """The config's."""

    @property
    def mesh(self) -> dict[str, int]:
        a = self.estimate.arrangement
        return {"pipeline": a.pipeline, "replica": a.replica, "data": a.data, "tensor": a.tensor}

    @property
    def schedule(self) -> str:
        """With what else is particular about the stages."""
        a = self.estimate.arrangement
        if a.pipeline == 1:
            return "–"
        chunks = [f"{a.chunks} virtual stages"] if a.chunks > 1 else []
        keep = ["keeps inputs"] if a.keeps_inputs else []
        head = [] if a.spread else ["head last"]
        return ", ".join([self.named, *chunks, *keep, *head])


def micro_batches(config: Config, gpu: Gpu, gpus_per_node: int) -> list[Layout]:
    """The config, no mesh axis of which is -1, with the next smaller and larger micro-batches, the smallest first."""
    own = _own(config, gpu, gpus_per_node)
    a = own.estimate.arrangement
    choices = divisors(a.global_batch // (a.replica * a.data))
    place = choices.index(a.micro_batch)
    smaller, larger = choices[max(0, place - NEIGHBOURS) : place], choices[place + 1 : place + NEIGHBOURS + 1]

    def others(micros: list[int]) -> Iterator[Layout]:
        for micro in micros:
            try:
                changed = Config.from_dict(config.to_dict(), [f"batch.micro={micro}"])
                made = estimate(Arrangement.of(changed), gpu, gpus_per_node)
            except ValueError:  # a schedule's table is for one number of micro-batches
                continue
            yield Layout(config.pipeline.schedule, made, own=False)

    return [*others(smaller), own, *others(larger)]


def meshes(config: Config, gpu: Gpu, gpus_per_node: int) -> list[Layout]:
    """The fastest layout of each of the fastest meshes, of those that fit, and the config's own; the fastest first."""
    own = _own(config, gpu, gpus_per_node)
    space = Space(config, own.estimate.arrangement.gpus)
    fastest = islice(_one_of_each_mesh(space, Cluster(gpu, gpus_per_node)), MESHES)
    return sorted([own, *fastest], key=lambda layout: layout.estimate.seconds.total)


def _own(config: Config, gpu: Gpu, gpus_per_node: int) -> Layout:
    return Layout(config.pipeline.schedule, estimate(Arrangement.of(config), gpu, gpus_per_node), own=True)


def _one_of_each_mesh(space: Space, cluster: Cluster) -> Iterator[Layout]:
    seen = []
    for choice in Ranked(space, cluster):
        if choice.candidate.mesh not in seen:
            seen.append(choice.candidate.mesh)
            yield Layout(choice.candidate.schedule, choice.estimate, own=False)
