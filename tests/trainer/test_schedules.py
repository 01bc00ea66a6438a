"""The learning rate at the knots of every schedule: the same on the host, on arrays and under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.schedules import learning_rate
from trainer.settings import OptimizerConfig

PEAK = 1e-2
KNOTS = {
    "cosine": (
        {"warmup_steps": 4, "decay_steps": 20, "min_ratio": 0.1},
        {
            0: 0.25,
            1: 0.5,
            3: 1.0,
            4: 1.0,
            9: 0.1 + 0.9 * (1 + 0.5**0.5) / 2,
            14: 0.55,
            24: 0.1,
            25: 0.1,
            10**7: 0.1,
        },
    ),
    "linear": (
        {"warmup_steps": 4, "decay_steps": 20, "min_ratio": 0.0},
        {0: 0.25, 3: 1.0, 4: 1.0, 5: 0.95, 14: 0.5, 23: 0.05, 24: 0.0, 99: 0.0},
    ),
    "constant": ({"warmup_steps": 4}, {0: 0.25, 3: 1.0, 4: 1.0, 50: 1.0, 10**7: 1.0}),
    "wsd": (
        {"warmup_steps": 4, "decay_steps": 20, "min_ratio": 0.2},
        {0: 0.25, 3: 1.0, 4: 1.0, 80: 1.0, 81: 0.96, 90: 0.6, 99: 0.24, 100: 0.2, 200: 0.2},
    ),
}


@pytest.mark.parametrize("schedule", KNOTS)
def test_knots(schedule: str) -> None:
    options, knots = KNOTS[schedule]
    rate = learning_rate(OptimizerConfig(schedule=schedule, learning_rate=PEAK, **options), train_steps=100)
    for step, part in knots.items():
        assert float(rate(step)) == pytest.approx(part * PEAK, rel=2e-6, abs=1e-9), step


@pytest.mark.parametrize("schedule", KNOTS)
def test_int_array_and_traced_steps_agree(schedule: str) -> None:
    options, _ = KNOTS[schedule]
    rate = learning_rate(OptimizerConfig(schedule=schedule, learning_rate=PEAK, **options), train_steps=100)
    steps = np.arange(110)
    from_array = rate(steps)
    assert from_array.dtype == jnp.float32
    assert from_array.shape == (110,)
    jitted = jax.jit(rate)
    for step in (0, 3, 4, 17, 24, 99, 109):
        traced = jitted(jnp.int32(step))
        assert traced.dtype == jnp.float32
        # XLA compiles each of the three for itself, which may move the last bit.
        for other in (rate(step), traced):
            np.testing.assert_allclose(other, from_array[step], rtol=3e-7, atol=1e-10)


def test_without_warmup_the_first_step_is_at_the_peak() -> None:
    rate = learning_rate(OptimizerConfig(learning_rate=PEAK), train_steps=10)
    assert float(rate(0)) == np.float32(PEAK)
    assert float(rate(10)) == pytest.approx(0.1 * PEAK)


def test_wsd_decays_over_a_tenth_of_the_run_unless_told() -> None:
    rate = learning_rate(OptimizerConfig(schedule="wsd", learning_rate=PEAK, min_ratio=0.0), train_steps=200)
    assert [float(rate(step)) for step in (180, 190, 200)] == pytest.approx([PEAK, PEAK / 2, 0.0])


@pytest.mark.parametrize("schedule", KNOTS)
def test_a_short_trial_of_a_long_recipe_stays_in_its_warmup(schedule: str) -> None:
    config = OptimizerConfig(schedule=schedule, learning_rate=PEAK, warmup_steps=2000)
    rate = learning_rate(config, train_steps=5)
    assert [float(rate(step)) for step in range(5)] == pytest.approx([PEAK * n / 2000 for n in range(1, 6)])


def test_late_steps_keep_their_resolution() -> None:
    """float32 has no odd numbers above 2^24; the step must not be rounded before the subtraction."""
    late = 2**25
    config = OptimizerConfig(schedule="wsd", learning_rate=1.0, min_ratio=0.0, decay_steps=4)
    rate = learning_rate(config, train_steps=late)
    assert [float(rate(late - left)) for left in (4, 3, 2, 1, 0)] == [1.0, 0.75, 0.5, 0.25, 0.0]
