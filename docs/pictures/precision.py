"""The float16 loss scale through the same overflows under both rules, and the learning rate beside it."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Drawing
from trainer import loss_scale
from trainer.schedules import learning_rate
from trainer.settings import LossScaleConfig, OptimizerConfig

STEPS = 40
OVERFLOWS = (11, 12, 13, 29)
WINDOW = 6
LEFT, RIGHT = 150, 790


def draw() -> Drawing:
    d = Drawing(820, 330, "Loss scale and learning rate through skipped steps")
    for step in OVERFLOWS:
        d.bar(_x(step), 44, _x(1) - _x(0), 236, "edge")
    d.text(_x(OVERFLOWS[1]) + 8, 34, "gradient not finite: skipped", ORANGE, size=12, anchor="middle")
    d.text(_x(OVERFLOWS[-1]) + 8, 34, "skipped", ORANGE, size=12, anchor="middle")
    scales = {rule: _scales(rule) for rule in ("deepspeed", "megatron")}
    powers = np.log2([*scales.values()])
    low, high = powers.min(), powers.max()
    for (rule, scale), colour, y in zip(scales.items(), (BLUE, PURPLE), (120, 200), strict=True):
        _plot(d, y, 60, (np.log2(scale) - low) / (high - low), colour)
        d.text(20, y - 34, "loss scale (log)", INK)
        d.text(20, y - 16, f"rule: {rule}", colour, mono=True, size=12)
    rate = learning_rate(OptimizerConfig(warmup_steps=8), STEPS)(jnp.arange(STEPS))
    _plot(d, 280, 56, np.asarray(rate) / float(rate.max()), GREEN)
    d.text(20, 246, "learning rate", INK)
    d.text(20, 264, "cosine", GREEN, mono=True, size=12)
    for step in range(0, STEPS + 1, 10):
        d.text(_x(step), 302, f"{step}", FAINT, size=12, anchor="middle")
    d.text(20, 302, "step", FAINT, size=12)
    return d


def _scales(rule: str) -> list[float]:
    """The scale that each step uses."""
    config = LossScaleConfig(rule=rule, initial_power=6, window=WINDOW, hysteresis=2)
    state = loss_scale.init(config)
    update = jax.jit(lambda state, finite: loss_scale.update(config, state, finite))
    scales = []
    for step in range(STEPS):
        scales.append(float(state.scale))
        state = update(state, jnp.bool_(step not in OVERFLOWS))
    return scales


def _plot(d: Drawing, y: float, height: float, values: Sequence[float] | np.ndarray, colour: str) -> None:
    """Values in [0, 1] as steps that stand on `y`."""
    points = [(_x(step + after), y - height * float(value)) for step, value in enumerate(values) for after in (0, 1)]
    d.line(points, colour)


def _x(step: float) -> float:
    return LEFT + (RIGHT - LEFT) * step / STEPS
