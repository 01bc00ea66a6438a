"""How a config says what is done when something goes wrong while it trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from models.float32 import Float32

Kind = Literal["nonfinite", "spike"]
"""How a step can go wrong."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FailuresConfig:
    """What is done about a step that went wrong: [running.md](running.md#a-step-that-went-wrong)."""

    on_nonfinite: Literal["skip", "stop", "rollback"] = "skip"
    """When a loss or gradient is not finite. The step changes nothing in any case; `stop` ends the run, and `rollback`
    goes back to a checkpoint from before it and leaves its batch out."""
    on_spike: Literal["none", "skip", "stop", "rollback"] = "none"
    """The same for a loss or gradient norm that is finite and much larger than before; `none` does not look. Only with
    `skip` does the step change nothing."""
    spike_loss: Annotated[float | None, Float32(gt=1)] = 1.5
    """A loss so many times the median of the last steps is a spike; null: it is not looked at."""
    spike_grad_norm: Annotated[float | None, Float32(gt=1)] = 10.0
    """The same for the gradient norm."""
    window: int = Field(default=100, ge=1, le=1_000_000)
    """Finite steps that the median is of. Nothing is a spike before there are so many."""
    steps_back: int = Field(default=0, ge=0)
    """A rollback goes to a checkpoint at least so many steps older than the bad step; 0: to the newest before it."""
    most_skips: int | None = Field(default=100, ge=1)
    """Steps in a row that changed nothing, after which the run ends with exit code 3: it has diverged. With float16,
    those that lower its loss scale count too. null: it never does."""
    most_rollbacks: int = Field(default=5, ge=1)
    """Of the whole run; instead of one more, it stops."""

    def skips(self, kind: Kind) -> bool:
        """Whether a step that went wrong in this way changes nothing, and training goes on."""
        return self.wanted(kind) == "skip"

    @property
    def rolls_back(self) -> bool:
        return "rollback" in (self.on_nonfinite, self.on_spike)

    def wanted(self, kind: Kind) -> str:
        """What is to be done about a step that went wrong in this way."""
        return {"nonfinite": self.on_nonfinite, "spike": self.on_spike}[kind]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class WatchdogConfig:
    """Ends a run in which nothing moves any more: [running.md](running.md#a-run-that-hangs)."""

    seconds: float | None = Field(default=1800, gt=0)
    """Without a step, a bucket of an offloaded update or a batch of an evaluation, the run ends with exit code 1, and
    says what every process waits for. Must be more than the slowest of them and the slowest save; null: never."""
    compile_seconds: float = Field(default=7200, gt=0)
    """The same, where programs may be compiled, by this process or one that it waits for: the first time that something
    is done."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class CheckConfig:
    """Proofs during the run that nothing broke in silence."""

    replicas_every: int | None = Field(default=None, ge=1)
    """Steps between two comparisons of what several devices should hold the same of: weights, moments, counters; with
    one before every checkpoint. Where they differ, the run ends: [running.md](running.md#replicas-that-differ). null:
    never."""
