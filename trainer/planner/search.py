"""The fastest layouts of a config on GPUs that are not there, found among all that can be placed.

Closed forms rank them (`ranking`); the memory of the best few is confirmed by tracing the step and, if asked, by
compiling it, and what then does not fit gives its place to the next. Offload is for what fits in no other way.
Knows nothing of how layouts are enumerated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter

from sharding.mesh import MOST_DEVICES
from trainer.config import Config
from trainer.config_auto import AutoMesh
from trainer.description import describe
from trainer.errors import ConfigError
from trainer.offload.config import OffloadConfig
from trainer.planner.candidates import Space
from trainer.planner.compiled import CompiledStep, check_installed, compile_step
from trainer.planner.gpu import KINDS, Gpu, load
from trainer.planner.links import Cluster
from trainer.planner.offloading import RUNGS, Settings, changed, written
from trainer.planner.ranking import Choice, Ranked, any_fits, fewest_bytes
from trainer.planner.traced import traced_stages
from trainer.units import GIB

MOST_KINDS = 3
"""Of larger GPUs that would do, how many are named: the smallest."""

TRACED = 3
"""Layouts whose memory is confirmed by tracing the step."""
WORTH_IT = 0.01
"""Gains that are told, as a part of a step."""

Compiler = Callable[[Config], CompiledStep]
Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Faster:
    """What would make the winner faster."""

    what: str
    gain: float
    """Tokens/s more, as a part of those of the winner."""


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    space: Space
    cluster: Cluster
    best: list[Choice]
    """Of each mesh the fastest layout that fits, the fastest first: the winner."""
    refused: list[Choice]
    """Faster by closed forms, and found by tracing or by compiling not to fit."""
    offload: Settings = field(default_factory=dict)
    """What was set because nothing fits without it."""

    @property
    def winner(self) -> Choice:
        return self.best[0]

    @cached_property
    def faster(self) -> list[Faster]:
        """Each on its own, by closed forms; of the layouts that there would be then, the best. Takes as long as the
        search."""
        return list(_faster(self))


def search(
    config: Config,
    gpu: str | Gpu = "h100",
    gpus: int = 8,
    gpus_per_node: int = 8,
    top: int = 10,
    *,
    fixed: frozenset[str] = frozenset(),
    compiled: int = 0,
    compiler: Compiler | None = None,
    offload: bool = False,
    say: Say = quiet,
) -> Found:
    """The `top` fastest meshes for `config` on `gpus` GPUs of a kind, and their layouts.

    Args:
        fixed: settings of `trainer.config_auto.SEARCHED` that stay as the config has them, besides those of its `auto`
            mesh.
        compiled: so many of the best are compiled, which takes up to a minute or so each.
        compiler: how; unless given, for GPUs that are not there.
        offload: where nothing fits, and the config offloads nothing, to search on with ever more offloaded.
        say: is told what takes long, when it begins.

    Raises:
        ConfigError: an unknown GPU, nothing can be placed on so many, or nothing fits: by how much, and what helps; or
            what XLA needs to compile is not installed.
    """
    for name, number in (("gpus", gpus), ("gpus_per_node", gpus_per_node), ("top", top)):
        if not 1 <= number <= MOST_DEVICES:
            raise ConfigError(f"{name}={number}: use 1 to {MOST_DEVICES:,}")
    if compiled and compiler is None:
        check_installed()
    if isinstance(config.mesh, AutoMesh):
        fixed |= config.mesh.fixed
    space = Space(config, gpus, fixed)
    cluster = Cluster(load(gpu) if isinstance(gpu, str) else gpu, gpus_per_node)
    cluster.gpu.require(config.precision.compute)
    if not any(True for placement in space.placements() for _ in space.micro_batches(placement)):
        raise ConfigError(_unplaced(space))
    compiler = compiler or partial(compile_step, gpu=cluster.gpu, gpus_per_node=gpus_per_node)
    found = _search(space, cluster, top, compiled, compiler, say)
    for settings, offloaded in _with_offload(space) if offload and not found.best else ():
        say(f"nothing fits; searching with {written(settings)}")
        with suppress(ConfigError):  # what is fixed, or the model, does not go with it
            slower = _search(offloaded, cluster, top, compiled, compiler, say)
            if slower.best:
                return dataclasses.replace(slower, offload=settings)
    if not found.best:
        raise ConfigError(_none_left(found.refused) if found.refused else _too_large(space, cluster))
    return found


def _with_offload(space: Space) -> Iterator[tuple[Settings, Space]]:
    """The space with ever more offloaded, where the config does not offload anything itself. What is fixed stays."""
    for settings in RUNGS if space.config.offload == OffloadConfig() else ():
        set_already = (attrgetter(key)(space.config) == settings[key] for key in space.fixed & settings.keys())
        if all(set_already):
            yield settings, dataclasses.replace(space, config=changed(space.config, settings))


def _search(space: Space, cluster: Cluster, top: int, compiled: int, compiler: Compiler, say: Say) -> Found:
    """What is found without more offload than the config has; perhaps nothing."""
    best: list[Choice] = []
    refused: list[Choice] = []
    config, ranked = space.config, Ranked(space, cluster)
    for choice in ranked:
        if any(choice.candidate.mesh == better.candidate.mesh for better in best):
            continue
        laid_out = Config.from_dict(choice.candidate.on(config.to_dict()))
        if len(best) < TRACED:
            choice = _traced(choice, laid_out)
        if len(best) < compiled and choice.fits:
            say(f"compiling {choice.candidate}")
            choice = dataclasses.replace(choice, compiled=compiler(laid_out).total)
        if choice.fits:
            best.append(choice)
        else:
            refused.append(choice)
            ranked.keep_less(choice)
        if len(best) == top:
            break
    return Found(space, cluster, best, refused)


def _traced(choice: Choice, laid_out: Config) -> Choice:
    stages = traced_stages(choice.estimate, describe(laid_out))
    return dataclasses.replace(choice, traced=max(stages, key=lambda stage: stage.total))


def _faster(found: Found) -> Iterator[Faster]:
    space, cluster = found.space, found.cluster
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
        wishes[_without(space)] = dataclasses.replace(space, fixed=frozenset()), cluster
    before = found.winner.estimate.tokens_per_second
    for what, (wished, on) in wishes.items():
        then = next(Ranked(wished, on)).estimate
        gain = then.tokens_per_second / before - 1
        if gain >= WORTH_IT:
            yield Faster(what, gain)


def _unplaced(space: Space) -> str:
    fixed = f" with {', '.join(sorted(space.fixed))} as they are" if space.fixed else ""
    micro = f" x batch.micro={space.config.batch.micro}" if "batch.micro" in space.fixed else ""
    return (
        f"gpus={space.gpus}: no mesh of so many can be made{fixed}: mesh.tensor must divide model.heads="
        f"{space.config.model.heads}, mesh.pipeline can be at most model.layers={space.config.model.layers}, and "
        f"mesh.replica x mesh.data{micro} must divide batch.global={space.config.batch.global_}; change one, or the "
        "number of GPUs"
    )


def _none_left(refused: list[Choice]) -> str:
    """Where closed forms say that something fits, and nothing does."""
    nearest = min(refused, key=lambda choice: choice.bytes_per_gpu)
    needed, gpu = nearest.bytes_per_gpu, nearest.estimate.gpu
    return (
        f"nothing fits: {len(refused)} layouts seemed to, and of these the nearest, {nearest.candidate}, needs "
        f"{needed / GIB:.1f} GiB of each {gpu.name}, {(needed - gpu.limit_bytes) / GIB:.1f} more than there are "
        f"({nearest.known_by}); use more GPUs, or larger ones"
    )


def _too_large(space: Space, cluster: Cluster) -> str:
    """By how much the nearest misses, and what of more GPUs, larger GPUs and fewer fixed settings is enough."""
    needed, has = fewest_bytes(space, cluster.gpu), cluster.gpu.limit_bytes
    return (
        f"nothing fits on {space.gpus} x {cluster.gpu.name}: the nearest needs {needed / GIB:.1f} GiB of each, "
        f"{(needed - has) / GIB:.1f} more than there are; would fit: "
        f"{'; '.join(_helps(space, cluster)) or 'none of 16 times as many, larger GPUs, or other settings'}"
    )


def _helps(space: Space, cluster: Cluster) -> Iterator[str]:
    if space.fixed and any_fits(dataclasses.replace(space, fixed=frozenset()), cluster.gpu):
        yield _without(space)
    counts = (space.gpus * 2**power for power in range(1, 5))
    enough = (count for count in counts if any_fits(dataclasses.replace(space, gpus=count), cluster.gpu))
    yield from (f"{count} GPUs" for count in islice(enough, 1))
    larger = (gpu for gpu in map(load, KINDS) if gpu.limit_bytes > cluster.gpu.limit_bytes)
    large_enough = (gpu for gpu in sorted(larger, key=attrgetter("limit_bytes")) if any_fits(space, gpu))
    yield from (f"GPUs of kind {gpu.name}" for gpu in islice(large_enough, MOST_KINDS))
    offloads = (settings for settings, offloaded in _with_offload(space) if any_fits(offloaded, cluster.gpu))
    yield from (written(settings) for settings in islice(offloads, 1))


def _without(space: Space) -> str:
    return f"without {', '.join(sorted(space.fixed))} being fixed"
