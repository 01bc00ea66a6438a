"""What no section can see alone: sizes that do not fit together, and keys without effect.

Needs no device. Each message names its keys, the reason and the nearest choices that work.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pallas_kernels.attention import objections
from sharding.mesh import BATCH_AXES
from trainer.attention import wanted
from trainer.config_yaml import KeyPath
from trainer.divisors import divisors
from trainer.offload.buckets import UNIT
from trainer.offload.choice import num_elements, offloaded
from trainer.offload.config import OffloadConfig
from trainer.paths import STDLIB, local
from trainer.pipeline import find_schedule, is_table, make_schedule, make_stages
from trainer.processes import elastic

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.config_source import Source


class NoEffect(NamedTuple):
    """`key` does nothing while `setting` has one of `values`."""

    key: str
    setting: str
    values: tuple[Any, ...]
    because: str
    may_wait: bool = False
    """It may stand there for other values of `setting`, where that is written too."""
    named: str | None = None
    """How a user writes `setting` with `values`, where it is no key but follows from some."""


_MANY_SMALL_BUCKETS, _MANY_BUCKETS = 1000, 100_000
"""Parts of an offloaded state, of less than some pages and of any size."""
_NO_ROLLBACK = "neither failures.on_nonfinite=rollback nor failures.on_spike=rollback"

NO_EFFECT = (
    NoEffect("precision.loss_scale", "precision.compute", ("float32", "bfloat16"), "only float16 is scaled"),
    NoEffect(
        "precision.loss_scale.consecutive_hysteresis",
        "precision.loss_scale.rule",
        ("megatron",),
        "only DeepSpeed's rule has the choice",
    ),
    NoEffect("model.rope_theta", "model.positions", ("alibi", "learned"), "only rope rotates"),
    NoEffect("optimizer.beta2", "optimizer.name", ("sgd",), "it keeps no second moment"),
    NoEffect("optimizer.epsilon", "optimizer.name", ("sgd", "lion"), "only adamw divides by a moment"),
    NoEffect("optimizer.decay_steps", "optimizer.schedule", ("constant",), "it never decays"),
    NoEffect("optimizer.min_ratio", "optimizer.schedule", ("constant",), "it never decays"),
    NoEffect("zero.persist_below", "zero.stage", (0,), "everything stays whole"),
    NoEffect("pipeline", "mesh.pipeline", (1,), "there are no stages", may_wait=True),
    NoEffect("offload.optimizer_fraction", "offload.optimizer", ("none",), "nothing of it is offloaded", may_wait=True),
    NoEffect("offload.bucket", "offload.optimizer", ("none",), "nothing is sent in buckets", may_wait=True),
    NoEffect("offload.path", "offload.optimizer", ("none", "host"), "only nvme has files", may_wait=True),
    NoEffect("offload.buffers", "offload.optimizer", ("none", "host"), "only nvme has files", may_wait=True),
    NoEffect("offload.direct_io", "offload.optimizer", ("none", "host"), "only nvme has files", may_wait=True),
    *(
        NoEffect(f"failures.{key}", "failures.on_spike", ("none",), "nothing looks for spikes", may_wait=True)
        for key in ("spike_loss", "spike_grad_norm", "window")
    ),
    *(
        NoEffect(f"failures.{key}", "failures.rolls_back", (False,), "nothing goes back", named=_NO_ROLLBACK)
        for key in ("steps_back", "most_rollbacks")
    ),
    NoEffect("watchdog.compile_seconds", "watchdog.seconds", (None,), "nothing is ended"),
    NoEffect("init.state", "init.from_", (None,), "there is nothing to take", named="init.from=null"),
    NoEffect("data.text_key", "data.path", ("stdlib",), "there are no records"),
    *(
        NoEffect(f"elastic.{axis}", f"elastic.{axis}", ((),), "the axis stays as it is")
        for axis in ("pipeline", "replica", "data", "tensor")
    ),
)


def without_effect(config: Config, source: Source | None = None) -> Iterator[tuple[KeyPath, str]]:
    """The keys that do nothing in this config, and why; with a source, those of them that should not be written."""
    for rule in NO_EFFECT:
        value, key = attrgetter(rule.setting)(config), tuple(rule.key.split("."))
        waits = source and rule.may_wait and source.wrote(tuple(rule.setting.split(".")))
        if value in rule.values and (source is None or source.wrote(key)) and not waits:
            named = rule.named or f"{rule.setting}={value}"
            yield key, f"has no effect with {named} ({rule.because}); leave it out"


def contradictions(config: Config) -> Iterator[str]:
    """What cannot be trained. A mesh axis of -1 is left unchecked until the number of devices is known."""
    try:
        virtual = config.mesh.virtual_devices
        mesh = config.mesh.resolve(virtual) if virtual else config.mesh
    except ValueError as error:
        yield str(error)
        return
    yield from _own_files(config)
    yield from _sequence(config)
    yield from _attention(config)
    if problems := [*_batch(config, mesh.sizes)]:
        yield from problems
    else:
        yield from _pipeline(config, mesh.sizes)
    yield from _activations(config, mesh.pipeline)
    if mesh.tensor > 1:
        yield from _tensor(config, mesh.tensor)
    yield from _schedule(config)
    yield from _loop(config)
    yield from _failures(config)
    yield from _replicas(config)
    yield from _offloaded_optimizer(config)
    yield from _buckets(config, mesh.sizes)
    yield from _offloaded_parameters(config)
    yield from _elastic(config)


def _own_files(config: Config) -> Iterator[str]:
    """Folders that a run fills, where they would be read as text at its next start."""
    filled = {
        "data.cache": config.data.cache,
        "run.compile_cache": config.run.compile_cache,
        "offload.path": config.offload.path,
    }
    names = [config.data.path] if isinstance(config.data.path, str) else config.data.path
    for name in names if names != [STDLIB] else ():
        for key, folder in filled.items():
            if folder is not None and _is_read_with(Path(local(folder)), Path(name)):
                yield f"{key}={folder} is in data.path={name}, and would be read as text; name a folder outside of it"


def _is_read_with(folder: Path, text: Path) -> bool:
    """Whether `folder` is among what is read where data.path is the folder `text`: nothing hidden is."""
    inner, outer = folder.resolve(), text.resolve()
    return inner.is_relative_to(outer) and not any(part.startswith(".") for part in inner.relative_to(outer).parts)


def _elastic(config: Config) -> Iterator[str]:
    """The sizes, and all that is wrong with the config on one of the other meshes."""
    if problems := [*elastic.objections(config)]:
        yield from problems
        return
    for mesh in elastic.meshes(config) if config.elastic.sizes else ():
        other = dataclasses.replace(config, mesh=mesh, elastic=elastic.ElasticConfig())
        if mesh.sizes != config.mesh.sizes and (problem := next(contradictions(other), None)):
            sizes = ", ".join(f"{axis} {mesh.sizes[axis]}" for axis in config.elastic.sizes)
            yield f"elastic: with {sizes}: {problem}"


def _batch(config: Config, mesh: dict[str, int]) -> Iterator[str]:
    sizes = [mesh[axis] for axis in BATCH_AXES]
    if -1 in sizes:
        return
    try:
        config.batch.accumulation(math.prod(sizes))
    except ValueError as error:
        yield str(error)


def _sequence(config: Config) -> Iterator[str]:
    sequence, context = config.batch.sequence, config.model.context
    if sequence > context:
        yield (
            f"batch.sequence={sequence} is longer than model.context={context}; use batch.sequence={context}, or a "
            "larger model.context"
        )


def _attention(config: Config) -> Iterator[str]:
    gpu = "" if config.mesh.virtual_devices is None else None
    yield from objections(config.attention.implementation, wanted(config, gpu))


def _pipeline(config: Config, mesh: dict[str, int]) -> Iterator[str]:
    if mesh["pipeline"] == -1:
        yield from _schedule_name(config.pipeline.schedule)
    if mesh["pipeline"] in (1, -1):
        return
    try:
        stages = make_stages(config, mesh)
    except ValueError as error:
        yield str(error)
        return
    try:
        if all(mesh[axis] > 0 for axis in BATCH_AXES):
            make_schedule(config, mesh)
    except ValueError as error:
        yield f"pipeline.schedule: {error}"
    if config.pipeline.keep == "inputs" and config.recompute.policy == "full" and stages.depth == 1:
        yield (
            "pipeline.keep=inputs runs a stage of one layer again for its backward pass, and recompute=full would run "
            "that layer once more and save nothing; leave one of them out"
        )


def _activations(config: Config, pipeline: int) -> Iterator[str]:
    if config.offload.activations == "host" and pipeline > 1:
        yield (
            f"offload.activations=host does not work with mesh.pipeline={pipeline}: stages keep micro-batches in a "
            "ring on the device; use mesh.pipeline=1, or offload.activations=none with pipeline.keep=inputs"
        )
    if config.offload.activations == "host" and not config.model.scan_layers:
        yield (
            "offload.activations=host relieves no device with model.scan_layers=false: XLA has what unrolled layers "
            "need back early; use model.scan_layers=true"
        )


def _schedule_name(name: str) -> Iterator[str]:
    """All that can be told before the number of stages is known."""
    try:
        if not is_table(name):
            find_schedule(name, stages=1, chunks=1, micro_batches=1)
    except ValueError as error:
        yield f"pipeline.schedule: {error}"


def _tensor(config: Config, tensor: int) -> Iterator[str]:
    sequence, heads, kv_heads = config.batch.sequence, config.model.heads, config.model.num_kv_heads
    fit = [n for n in divisors(math.gcd(heads, sequence)) if kv_heads % n == 0 or n % kv_heads == 0]
    use = f"mesh.tensor can be one of {fit}"
    if sequence % tensor:
        yield (
            f"batch.sequence={sequence} does not divide by mesh.tensor={tensor}, and norms are split over the "
            f"sequence; use {_multiples(sequence, tensor)}, or {use}"
        )
    if heads % tensor:
        yield f"model.heads={heads} does not divide by mesh.tensor={tensor}; {use}"
    elif kv_heads % tensor and tensor % kv_heads:
        yield f"of model.kv_heads={kv_heads} and mesh.tensor={tensor} one must divide the other; {use}"


def _schedule(config: Config) -> Iterator[str]:
    optimizer, steps = config.optimizer, config.train.steps
    warmup, decay = optimizer.warmup_steps, optimizer.decay_steps
    if warmup >= steps:  # a short trial that ends inside its warm-up
        return
    if decay is not None and optimizer.schedule == "wsd" and warmup + decay > steps:
        yield (
            f"optimizer.warmup_steps={warmup} + optimizer.decay_steps={decay} is more than "
            f"train.steps={steps}; use a decay_steps of at most {steps - warmup}, or more steps"
        )


def _loop(config: Config) -> Iterator[str]:
    train, profile = config.train, config.train.profile
    if train.eval_every and not config.data.holdout:
        yield (
            f"train.eval_every={train.eval_every} needs held-out text, and data.holdout=0 "
            "keeps none; use data.holdout=0.02, or leave eval_every out"
        )
    yield from _keep(config)
    if profile and profile.start + profile.steps > train.steps:
        yield (
            f"train.profile.start={profile.start} + train.profile.steps={profile.steps} is more than "
            f"train.steps={train.steps}; use a start of at most {max(train.steps - profile.steps, 0)}"
        )


def _keep(config: Config) -> Iterator[str]:
    train, saved = config.train, config.train.checkpoint_every
    if train.keep_every is not None and (saved is None or train.keep_every % saved):
        use = "give train.checkpoint_every" if saved is None else f"use {_multiples(train.keep_every, saved)}"
        yield (
            f"train.keep_every={train.keep_every} keeps checkpoints of such steps, and with "
            f"train.checkpoint_every={saved or 'null'} none is saved there; {use}"
        )
    if train.keep_best and not (train.eval_every and saved):
        missing = "train.eval_every" if saved else "train.checkpoint_every"
        yield f"train.keep_best={train.keep_best} chooses among checkpoints that were evaluated; give {missing} too"


def _failures(config: Config) -> Iterator[str]:
    failures, train = config.failures, config.train
    if failures.on_nonfinite != "skip" and config.precision.compute == "float16":
        yield (
            f"failures.on_nonfinite={failures.on_nonfinite} does not work with precision.compute=float16, whose loss "
            "scale is found by gradients that overflow; use failures.on_nonfinite=skip, or bfloat16"
        )
    if failures.on_spike != "none" and failures.spike_loss is None and failures.spike_grad_norm is None:
        yield (
            f"failures.on_spike={failures.on_spike} looks at nothing with spike_loss and spike_grad_norm null; give one"
        )
    if not failures.rolls_back:
        return
    if train.checkpoint_every is None:
        yield "failures: a rollback goes back to a checkpoint, and there is none; give train.checkpoint_every"
    elif failures.steps_back > (reach := (train.keep_checkpoints - 1) * train.checkpoint_every):
        yield (
            f"failures.steps_back={failures.steps_back}, but train.keep_checkpoints={train.keep_checkpoints} with "
            f"train.checkpoint_every={train.checkpoint_every} keeps none older than {reach} steps for sure; use "
            f"train.keep_checkpoints={-(-failures.steps_back // train.checkpoint_every) + 1}"
        )


def _replicas(config: Config) -> Iterator[str]:
    every, asked = config.check.replicas_every, f"check.replicas_every={config.check.replicas_every}"
    if every is None:
        return
    if config.mesh.num_devices == 1:
        yield f"{asked} has nothing to compare on one device; leave it out"
    if config.offload.parameters != "none":
        yield (
            f"{asked} compares what devices hold, and with offload.parameters={config.offload.parameters} most weights "
            "are elsewhere; leave one of them out"
        )


def _offloaded_optimizer(config: Config) -> Iterator[str]:
    offload = config.offload
    if offload.optimizer == "nvme" and offload.path is None:
        yield "offload.optimizer=nvme needs a folder on a local disk; give it as offload.path"
    if offload.optimizer != "none":
        sizes = num_elements(config.model)
        smallest = min(sizes.values()) / sum(sizes.values())
        if not offloaded(config):
            yield (
                f"offload.optimizer_fraction={offload.optimizer_fraction:g} is less than the smallest parameter, and "
                f"they are offloaded whole; use at least {smallest:.2g}"
            )


def _buckets(config: Config, mesh: dict[str, int]) -> Iterator[str]:
    """Each is a page at least, and some calls: refused are so many that a step would take minutes."""
    axes = [mesh[axis] for axis in ("pipeline", "data", "tensor")]
    if config.offload.optimizer == "none" or -1 in axes:
        return
    sizes = num_elements(config.model)
    held = sum(sizes[name] for name in offloaded(config)) // math.prod(axes)
    least = max(min(UNIT, held // _MANY_SMALL_BUCKETS), held // _MANY_BUCKETS)
    if config.offload.bucket < least:
        yield (
            f"offload.bucket={config.offload.bucket} cuts the {held:,} elements that each device has of the weights "
            f"into {held // config.offload.bucket:,} parts, and each takes a page and a time of its own; use at least "
            f"{least} (it is {OffloadConfig().bucket} unless given)"
        )


def _offloaded_parameters(config: Config) -> Iterator[str]:
    offload, needs = config.offload, f"offload.parameters={config.offload.parameters} needs"
    if offload.parameters == "none":
        return
    if offload.parameters == "nvme" and offload.optimizer != "nvme":
        yield f"{needs} the optimizer there too; set offload.optimizer=nvme, or use offload.parameters=host"
    elif offload.optimizer == "none" or offload.optimizer_fraction < 1:
        yield f"{needs} all of the optimizer on the host too; set offload.optimizer to host or nvme, with no fraction"
    if config.zero.stage != 3:
        yield f"{needs} zero.stage=3, which fetches a layer's weights where it uses them; it is {config.zero.stage}"
    if config.mesh.pipeline > 1:
        yield f"{needs} mesh.pipeline=1: stages keep their layers; it is {config.mesh.pipeline}"
    if not config.model.scan_layers:
        yield f"{needs} model.scan_layers=true, so that only the layer at work is on the device"
    if config.precision.compute == "float16":
        yield f"{needs} precision.compute=bfloat16 or float32: the scale of float16 is not taken from its gradients"


def _multiples(number: int, of: int) -> str:
    """The multiples nearest to a number that is none."""
    low = number - number % of
    return f"{low} or {low + of}" if low else str(of)
