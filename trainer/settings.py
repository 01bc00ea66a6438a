"""The sections of a config that the trainer itself owns: batch, precision, recompute, optimizer, train, run.

Frozen and validated; every default is such that the shortest file trains. `mesh`, `zero`, `model` and `data` stand
beside their owners.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from models.float32 import Float32
from trainer.divisors import divisors
from trainer.path_types import CachePath, LocalPath

_STRICT = ConfigDict(extra="forbid", populate_by_name=True)
MOST = 2**31 - 1
"""Of what devices count, in int32."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class BatchConfig:
    """Sequences: `global` = `micro` x accumulation x (replica x data x expert); accumulation is derived."""

    global_: int = Field(default=32, ge=1, le=1_000_000_000, alias="global")
    """Sequences per optimizer step, over the whole mesh."""
    micro: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Sequences per device at a time; unless given, all of the device's share at once."""
    sequence: int = Field(default=256, ge=2, le=1_000_000_000)
    """Tokens per sequence."""
    parts: int = Field(default=1, ge=1, le=1_000_000_000)
    """Parts of a micro-batch that each layer works at side by side, so that what tensor parallelism sends of one is on
    its way while another is at work: [tensor_parallel.md](tensor_parallel.md#what-hides-it)."""

    def accumulation(self, num_groups: int) -> int:
        """Micro-batches per step and device for `num_groups` = replica x data x expert."""
        per_group, rest = divmod(self.global_, num_groups)
        if rest:
            low = self.global_ - rest
            near = f"{low} or {low + num_groups}" if low else f"{num_groups}"
            raise ValueError(
                f"batch.global={self.global_} does not divide over mesh.replica x mesh.data x mesh.expert = "
                f"{num_groups}; use {near}"
            )
        micro = self.micro or per_group
        if per_group % micro:
            raise ValueError(
                f"batch.global={self.global_} = micro {micro} x accumulation x {num_groups} has no whole solution: "
                f"each of the {num_groups} groups (mesh.replica x mesh.data x mesh.expert) takes {per_group} "
                f"sequences; batch.micro can be one of {divisors(per_group)}"
            )
        if micro % self.parts:
            raise ValueError(
                f"a micro-batch of {micro} sequences has no batch.parts={self.parts} equal parts; use one of "
                f"{divisors(micro)}"
            )
        return per_group // micro

    def micro_batch(self, num_groups: int) -> int:
        """Sequences per device at a time, for `num_groups` = replica x data x expert."""
        return self.global_ // num_groups // self.accumulation(num_groups)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class LossScaleConfig:
    """Dynamic loss scaling for float16. `rule` chooses whose exact algorithm: DeepSpeed's or Megatron's."""

    rule: Literal["deepspeed", "megatron"] = "deepspeed"
    """Whose rule; see [precision.md](precision.md#float16)."""
    initial_power: int = Field(default=16, ge=0, le=32)
    """The first scale is 2 to this power."""
    window: int = Field(default=1000, ge=1, le=MOST)
    """Finite steps in a row before the scale doubles."""
    hysteresis: int = Field(default=2, ge=1, le=MOST)
    """Overflows before the scale is halved."""
    consecutive_hysteresis: bool = False
    """DeepSpeed's rule only: every clean step refills the hysteresis."""
    minimum: Annotated[float, Float32(gt=0)] = 1.0
    """The scale never falls below."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PrecisionConfig:
    """Master weights, moments and gradient accumulation are float32; `compute` is what the matmuls run in."""

    compute: Literal["float32", "bfloat16", "float16"] = "float32"
    """What matmuls run in, and weights are gathered in."""
    reduce: Literal["float32", "bfloat16"] = "float32"
    """What gradients travel in."""
    loss_scale: LossScaleConfig = LossScaleConfig()


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RecomputeConfig:
    """What a layer's backward pass computes again instead of keeping."""

    policy: Literal["none", "selective", "full"] = "none"
    """See [recompute.md](recompute.md). `recompute: full` is short for it."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class OptimizerConfig:
    """The update rule and its learning-rate schedule, a pure function of the step."""

    name: Literal["adamw", "sgd", "lion"] = "adamw"
    """The update rule."""
    learning_rate: Annotated[float, Float32(ge=0)] = 3e-4
    """At its peak, after the warm-up."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """The shape of the decay."""
    warmup_steps: int = Field(default=0, ge=0, le=MOST)
    """Steps of linear rise; step 0 already learns."""
    decay_steps: int | None = Field(default=None, ge=1, le=MOST)
    """How long the decay takes. cosine, linear: from the end of the warm-up, by default until train.steps; wsd: the
    last steps of the run, by default a tenth of it."""
    min_ratio: Annotated[float, Float32(ge=0, le=1)] = 0.1
    """The last learning rate, as a part of `learning_rate`."""
    beta1: Annotated[float, Float32(ge=0, lt=1)] = 0.9
    """adamw and lion; the momentum of sgd."""
    beta2: Annotated[float, Float32(ge=0, lt=1)] = 0.95
    """adamw: decay of the second moment; lion: of its momentum."""
    epsilon: Annotated[float, Float32(gt=0)] = 1e-8
    """adamw: added to the root of the second moment."""
    weight_decay: Annotated[float, Float32(ge=0)] = 0.1
    """Decoupled; never on norms and biases."""
    clip: Annotated[float | None, Float32(gt=0)] = 1.0
    """The largest global gradient norm; null switches clipping off."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ProfileConfig:
    """A trace for XProf of `steps` steps from step `start` on."""

    start: int = Field(default=10, ge=0)
    """The first step traced, counted from the run's start."""
    steps: int = Field(default=3, ge=1)
    """Steps traced."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TrainConfig:
    steps: int = Field(default=1000, ge=0, le=MOST)
    """Optimizer steps of the whole run, skipped ones included."""
    log_every: int = Field(default=10, ge=1)
    """Steps between log lines. The host waits for the devices only then."""
    eval_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on held-out text, with one at the end; null: never."""
    eval_batches: int = Field(default=8, ge=1)
    """Global batches of held-out text per evaluation."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """A last checkpoint is always written when training ends or is stopped."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest so many stay."""
    keep_every: int | None = Field(default=None, ge=1)
    """Those whose step is a multiple of it stay too."""
    keep_best: int = Field(default=0, ge=0)
    """So many with the lowest loss on held-out text stay too, of those saved at a step that was evaluated."""
    stop_seconds: float | None = Field(default=None, gt=0)
    """How long the process lives on after SIGTERM, as its scheduler says (SLURM's KillWait, Kubernetes'
    terminationGracePeriodSeconds). Where that is too short for a checkpoint, it is said; null: it is not known."""
    profile: ProfileConfig | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class InitConfig:
    """What a new run begins with, instead of random weights; a run that has a checkpoint goes on from that."""

    from_: LocalPath | None = Field(default=None, alias="from", min_length=1)
    """The folder of a run, whose newest checkpoint it is, or of a checkpoint:
    [checkpoints.md](checkpoints.md#a-new-run-from-anothers-weights)."""
    state: Literal["weights", "all"] = "weights"
    """`weights` alone, at step 0; or all that is saved: moments, loss scale and the step too."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RunConfig:
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the folder and the W&B run."""
    dir: LocalPath | None = Field(default=None, min_length=1)
    """The run's folder; runs/NAME unless given."""
    compile_cache: CachePath | None = "~/.cache/meshwright/xla"
    """Where XLA keeps compiled programs between runs; null switches it off."""
    tensorboard: bool = True
    """Write event files beside metrics.jsonl."""
    wandb: dict[str, Any] | None = None
    """Arguments of wandb.init, such as {project: my-project}; null: not used. The key is taken from WANDB_API_KEY, or
    from `wandb login`; in a config it is refused."""

    @property
    def folder(self) -> str:
        return self.dir or f"runs/{self.name}"
