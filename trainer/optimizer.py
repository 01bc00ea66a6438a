"""The update rules, as optax transformations of whatever shard of the weights a device holds.

Every rule here is *elementwise*, so it is right on any shard, padding included (a zero gradient of a zero weight moves
nothing). The learning rate is applied by the step: it is a function of the step, not optimizer state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import optax

from sharding import collectives
from trainer.settings import OptimizerConfig

# Name -> the direction of the update, before weight decay and learning rate. One contract: elementwise.
RULES: dict[str, Callable[[OptimizerConfig], optax.GradientTransformation]] = {
    "adamw": lambda c: optax.scale_by_adam(b1=c.beta1, b2=c.beta2, eps=c.epsilon),
    "lion": lambda c: optax.scale_by_lion(b1=c.beta1, b2=c.beta2),
    "sgd": lambda c: optax.trace(decay=c.beta1),
}


def make_optimizer(config: OptimizerConfig, decays: Mapping[str, bool]) -> optax.GradientTransformation:
    """Gradients by name -> updates to subtract, times the learning rate. Decay is decoupled and only where `decays`."""
    return optax.chain(RULES[config.name](config), optax.add_decayed_weights(config.weight_decay, mask=dict(decays)))


def global_norm(squares: Mapping[str, jax.Array], sharded_axes: Mapping[str, tuple[str, ...]]) -> jax.Array:
    """The L2 norm over all logical elements of all gradients, each counted once, float32 and equal on every device.

    `squares` is the sum of each gradient's squares on this device, `sharded_axes` names the axes the gradient is cut
    over; over all others it must be replicated. Padding is zero.
    """
    groups: dict[tuple[str, ...], jax.Array] = {}
    for name, square in squares.items():
        axes = tuple(sorted(sharded_axes[name]))
        groups[axes] = groups.get(axes, 0.0) + square
    return sum(collectives.all_sum(square, axes) for axes, square in groups.items()) ** 0.5
