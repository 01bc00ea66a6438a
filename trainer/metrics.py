"""What a logged step says, and how many FLOPs a token of training is counted as.

Plain host numbers. Knows nothing of devices, displays or files.
"""

from __future__ import annotations

import dataclasses

from models.config import ModelConfig
from models.presets import linear_shapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One logged step; speeds are means over the steps since the last one logged, over the whole mesh."""

    step: int
    """Optimizer steps finished, this one and skipped ones included: the first is 1."""
    loss: float
    """Σ token loss / Σ counted tokens of the global batch, in nats: the number that was minimised."""
    grad_norm: float
    """L2 norm of the whole gradient, before clipping."""
    learning_rate: float
    tokens: int
    """Tokens trained on since the start of the run."""
    tokens_per_second: float
    step_seconds: float
    model_flops_per_second: float
    """By the convention of `model_flops_per_token`."""
    loss_scale: float = 1.0
    """1 unless compute is float16."""
    skipped_steps: int = 0
    """Steps without an update since the start of the run: a gradient was not finite, or a spike that is skipped."""
    mfu: float | None = None
    """model_flops_per_second over the dense peak of all devices; None where the peak is not known."""
    data_seconds: float = 0.0
    """Since the last time, how long devices had nothing to do as a batch was late: at most so long."""
    host_bytes: int | None = None
    """In memory of the first process now."""
    device_bytes: int | None = None
    """The most that any of its devices ever had in use; None where they do not tell."""

    def to_dict(self) -> dict[str, int | float]:
        """Name -> number, as sinks take it: without the step, and without what is None."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if name != "step" and value is not None}


def model_flops_per_token(config: ModelConfig, sequence: int) -> float:
    """Model FLOPs of training on one token of a sequence of `sequence` tokens: 3 x (forward FLOPs).

    Convention (that of Megatron-LM's `num_floating_point_operations`): backward costs twice the forward; a
    multiply and an add are two FLOPs; matmuls only, the output matrix included and embedding look-ups not;
    causal attention counts half of the square; recomputation is not counted. With a sliding window of w keys
    a query sees w - w² / (2·sequence) keys on average, which is the causal half for w = sequence.
    """
    matrices = sum(num_in * num_out for num_in, num_out in linear_shapes(config).values())
    window = min(config.window or sequence, sequence)
    keys = window - window**2 / (2 * sequence)
    attention = 2 * config.heads * config.dim_per_head * keys  # scores, and their sum of values
    return 3 * 2 * (config.layers * (matrices + attention) + config.vocab * config.hidden)
