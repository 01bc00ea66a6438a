"""The learning rate as a pure function of the step: the same number in the step, the log and the planner.

Knows nothing of gradients or optimizers. A step that was skipped still counts as a step.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from trainer.settings import OptimizerConfig

Step = int | jax.typing.ArrayLike
Shape = Callable[[jax.Array], jax.Array]

# Decay progress in [0, 1] -> what is left of the way from the peak to the floor, from 1 to 0.
_SHAPES: dict[str, Shape] = {
    "cosine": lambda progress: 0.5 * (1 + jnp.cos(jnp.pi * progress)),
    "linear": lambda progress: 1 - progress,
    "wsd": lambda progress: 1 - progress,
    "constant": jnp.ones_like,
}


def learning_rate(config: OptimizerConfig, train_steps: int) -> Callable[[Step], jax.Array]:
    """Returns step -> learning rate (float32, of the step's shape), counting steps from 0.

    With peak p, floor f = min_ratio · p, warm-up W and a decay from step A to step B:

        lr(t) = p · (t + 1) / W                           for t < W: step 0 learns, step W - 1 is at the peak
        lr(t) = f + (p - f) · shape((t - A) / (B - A))    after, with the progress held inside [0, 1]

    | schedule | shape(x)          | A                 | B                          |
    |----------|-------------------|-------------------|----------------------------|
    | cosine   | (1 + cos(πx)) / 2 | W                 | W + decay_steps            |
    | linear   | 1 - x             | W                 | W + decay_steps            |
    | wsd      | 1 - x             | B - decay_steps   | train_steps                |
    | constant | 1                 |                   |                            |

    cosine and linear decay until train_steps unless told.
    `wsd` (warm-up, stable, decay; Hu et al. 2024, arXiv 2404.06395) decays over train_steps / 10 unless told.
    The step may be an int, a numpy array or a traced int32.
    """
    start, end = _decay_span(config, train_steps)
    peak = config.learning_rate
    floor = config.min_ratio * peak
    warmup = config.warmup_steps
    shape = _SHAPES[config.schedule]

    def rate(step: Step) -> jax.Array:
        step = jnp.asarray(step, jnp.int32)
        progress = jnp.clip((step - start).astype(jnp.float32) / (end - start), 0.0, 1.0)
        decayed = floor + (peak - floor) * shape(progress)
        if not warmup:
            return decayed
        return jnp.where(step < warmup, peak * ((step + 1).astype(jnp.float32) / warmup), decayed)

    return rate


def _decay_span(config: OptimizerConfig, train_steps: int) -> tuple[int, int]:
    """First step of the decay, and the step at which the floor is reached; at least one step long.

    A run that ends inside its warm-up (a short trial of a long recipe) is no mistake: it never decays.
    """
    warmup, decay = config.warmup_steps, config.decay_steps
    if config.schedule == "wsd":
        start = max(train_steps - (decay or train_steps // 10), warmup)
        return start, max(train_steps, start + 1)
    return warmup, warmup + decay if decay else max(train_steps, warmup + 1)
