"""Loss-scale traces equal DeepSpeed's and Megatron's own algorithms, transcribed here in plain Python."""

import random
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from trainer import loss_scale
from trainer.errors import ConfigError
from trainer.loss_scale import LossScale
from trainer.settings import LossScaleConfig


class DeepSpeedScaler:
    """deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler.update_scale."""

    def __init__(self, config: LossScaleConfig) -> None:
        self.config = config
        self.scale = 2.0**config.initial_power
        self.iteration = 0
        self.last_overflow = -1
        self.hysteresis = config.hysteresis
        self.raised = False

    def update(self, finite: bool) -> None:
        config = self.config
        if not finite:
            if config.hysteresis == 1 or self.hysteresis == 1:
                self.raised = self.raised or self.scale == config.minimum
                self.scale = max(self.scale / 2, config.minimum)
            else:
                self.hysteresis -= 1
            self.last_overflow = self.iteration
        else:
            if config.consecutive_hysteresis:
                self.hysteresis = config.hysteresis
            stable = self.iteration - self.last_overflow - 1
            if stable > 0 and stable % config.window == 0:
                if not config.consecutive_hysteresis:
                    self.hysteresis = config.hysteresis
                self.scale *= 2
        self.iteration += 1


class MegatronScaler:
    """megatron/core/optimizer/grad_scaler.py, DynamicGradScaler.update."""

    def __init__(self, config: LossScaleConfig) -> None:
        self.config = config
        self.scale = 2.0**config.initial_power
        self.growth = 0
        self.hysteresis = config.hysteresis
        self.raised = False

    def update(self, finite: bool) -> None:
        config = self.config
        if not finite:
            self.growth = 0
            self.hysteresis -= 1
            if self.hysteresis <= 0:
                self.scale = max(self.scale / 2, config.minimum)
        else:
            self.growth += 1
            if self.growth == config.window:
                self.growth = 0
                self.hysteresis = config.hysteresis
                self.scale *= 2


REFERENCES = {"deepspeed": DeepSpeedScaler, "megatron": MegatronScaler}


def states(config: LossScaleConfig, steps: list[bool]) -> Iterator[LossScale]:
    """The states after each step, from the jitted rule."""
    update = jax.jit(lambda state, finite: loss_scale.update(config, state, finite))
    state = loss_scale.init(config)
    for finite in steps:
        state = update(state, jnp.bool_(finite))
        yield state


def scales(config: LossScaleConfig, pattern: str) -> list[float]:
    """Scales after each step of `pattern`: `.` a finite step, `x` an overflow."""
    return [float(state.scale) for state in states(config, [mark == "." for mark in pattern])]


OPTIONS: list[dict[str, object]] = [
    {"window": 3, "hysteresis": 2},
    {"window": 1, "hysteresis": 1},
    {"window": 5, "hysteresis": 3, "minimum": 4.0},
    {"window": 2, "hysteresis": 2, "initial_power": 2, "minimum": 3.0},
]
CASES = [{"rule": rule, **options} for rule in REFERENCES for options in OPTIONS]
CASES.append({"rule": "deepspeed", "window": 4, "hysteresis": 2, "consecutive_hysteresis": True})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", CASES)
def test_random_traces_equal_the_original(options: dict[str, object], seed: int) -> None:
    config = LossScaleConfig(**({"initial_power": 6} | options))
    rng = random.Random(seed)
    steps = [rng.random() < (0.85 if index < 150 else 0.4) for index in range(250)]
    original = REFERENCES[config.rule](config)
    for index, (finite, state) in enumerate(zip(steps, states(config, steps), strict=True)):
        original.update(finite)
        assert (float(state.scale), bool(state.exhausted)) == (original.scale, original.raised), index


def test_deepspeed_first_doubles_after_window_plus_one_clean_steps_then_every_window() -> None:
    config = LossScaleConfig(rule="deepspeed", initial_power=4, window=3)
    assert scales(config, "." * 10) == [16, 16, 16, 32, 32, 32, 64, 64, 64, 128]


def test_megatron_doubles_after_exactly_window_clean_steps() -> None:
    config = LossScaleConfig(rule="megatron", initial_power=4, window=3)
    assert scales(config, "." * 9) == [16, 16, 32, 32, 32, 64, 64, 64, 128]


def test_deepspeed_halves_at_the_second_overflow_and_at_every_one_after() -> None:
    config = LossScaleConfig(rule="deepspeed", initial_power=4, window=3, hysteresis=2)
    assert scales(config, "xx.x....") == [16, 8, 8, 4, 4, 4, 4, 8]
    assert scales(config, "xx....xx") == [16, 8, 8, 8, 8, 16, 16, 8]  # the doubling refills the hysteresis


def test_megatron_halves_at_the_second_overflow_and_at_every_one_after() -> None:
    config = LossScaleConfig(rule="megatron", initial_power=4, window=3, hysteresis=2)
    assert scales(config, "xx.x...xx") == [16, 8, 8, 4, 4, 4, 8, 8, 4]


def test_consecutive_hysteresis_forgives_an_overflow_after_any_clean_step() -> None:
    config = LossScaleConfig(rule="deepspeed", initial_power=4, hysteresis=2, consecutive_hysteresis=True)
    assert scales(config, "x.x.xx") == [16, 16, 16, 16, 16, 8]


def test_defaults_are_the_seeds_own() -> None:
    state = loss_scale.init(LossScaleConfig())
    assert float(state.scale) == 65536.0
    assert float(loss_scale.init(LossScaleConfig(rule="megatron", initial_power=32)).scale) == 2.0**32


def test_only_deepspeed_gives_up_at_the_minimum() -> None:
    for rule, gives_up in (("deepspeed", True), ("megatron", False)):
        config = LossScaleConfig(rule=rule, initial_power=1, hysteresis=1, minimum=1.0)
        trace = list(states(config, [False, False, True]))
        assert [float(state.scale) for state in trace] == [1.0, 1.0, 1.0]
        assert [bool(state.exhausted) for state in trace] == [False, gives_up, gives_up]


def test_the_scale_never_becomes_infinite() -> None:
    config = LossScaleConfig(rule="megatron", initial_power=32, window=1)
    assert max(scales(config, "." * 100)) == 2.0**127


def test_the_state_keeps_its_types_so_that_jit_compiles_once() -> None:
    config = LossScaleConfig()
    before = loss_scale.init(config)
    after = loss_scale.update(config, before, jnp.bool_(True))
    assert jax.eval_shape(lambda: before) == jax.eval_shape(lambda: after)
    assert [leaf.weak_type for leaf in after] == [leaf.weak_type for leaf in before] == [False] * 4


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"initial_power": 2, "minimum": 8.0}, "precision.loss_scale.minimum=8"),
        ({"rule": "megatron", "consecutive_hysteresis": True}, "consecutive_hysteresis"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        loss_scale.init(LossScaleConfig(**options))
