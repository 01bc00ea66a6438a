"""Dynamic loss scaling for float16: DeepSpeed's and Megatron's exact rules, as pure functions of a state.

Usable under jit. Knows nothing of gradients: the step says whether they were finite, on every device alike.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainer.errors import ConfigError
from trainer.settings import LossScaleConfig

_LARGEST = 2.0**127  # twice this is infinite in float32, and an infinite scale never comes down again


class LossScale(NamedTuple):
    """Scalars that travel with the training state and into its checkpoints."""

    scale: jax.Array
    """float32: what the loss is multiplied with, and the gradients divided by."""
    clean_steps: jax.Array
    """int32: finite steps in a row."""
    hysteresis: jax.Array
    """int32: at 1, the next overflow lowers the scale; above, it lowers this count instead."""
    exhausted: jax.Array
    """bool: the scale overflowed at its minimum. DeepSpeed raises here; jit cannot, so the loop does."""


def init(config: LossScaleConfig) -> LossScale:
    """The state before the first step.

    Raises:
        ConfigError: the scale would start below its minimum, or the rule does not have the option.
    """
    if config.minimum > 2.0**config.initial_power:
        raise ConfigError(
            f"precision.loss_scale.minimum={config.minimum:g} is above the first scale, "
            f"2^{config.initial_power}; lower it, or raise precision.loss_scale.initial_power"
        )
    if config.consecutive_hysteresis and config.rule != "deepspeed":
        raise ConfigError(
            f"precision.loss_scale.consecutive_hysteresis means nothing with rule={config.rule}; leave it "
            "out, or use rule: deepspeed"
        )
    return LossScale(
        scale=jnp.float32(2.0**config.initial_power),
        clean_steps=jnp.int32(0),
        hysteresis=jnp.int32(config.hysteresis),
        exhausted=jnp.bool_(False),
    )


def update(config: LossScaleConfig, state: LossScale, finite: jax.Array) -> LossScale:
    """The state after a step whose gradients were all finite, or not (`finite`: a bool scalar).

    Both rules halve the scale at an overflow once the hysteresis is used up, and double it after `window`
    finite steps in a row, which refills the hysteresis. They differ in two things:

    - Megatron doubles after `window` finite steps. DeepSpeed counts the first of them as zero: it first
      doubles after window + 1, then every `window`.
    - DeepSpeed ends the run when the scale overflows at its minimum; Megatron stays there.

    References: deepspeed/runtime/fp16/loss_scaler.py, megatron/core/optimizer/grad_scaler.py.
    """
    is_deepspeed = config.rule == "deepspeed"
    counted = state.clean_steps + (0 if is_deepspeed else 1)
    grow = finite & (counted > 0) & (counted % config.window == 0)
    overflow = jnp.logical_not(finite)
    shrink = overflow & (state.hysteresis == 1)

    halved = jnp.maximum(state.scale / 2, config.minimum)
    doubled = jnp.minimum(state.scale * 2, _LARGEST)
    spent = jnp.maximum(state.hysteresis - 1, 1)
    refill = finite if config.consecutive_hysteresis else grow
    stuck = shrink & (state.scale == config.minimum) if is_deepspeed else jnp.bool_(False)
    return LossScale(
        scale=jnp.where(shrink, halved, jnp.where(grow, doubled, state.scale)),
        clean_steps=jnp.where(finite, state.clean_steps + 1, 0),
        hysteresis=jnp.where(refill, config.hysteresis, jnp.where(overflow, spent, state.hysteresis)),
        exhausted=state.exhausted | stuck,
    )
