"""A number that devices would make another of is refused when the config is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from models.float32 import Float32
from trainer.config import Config
from trainer.config_errors import fields
from trainer.config_yaml import KeyPath
from trainer.errors import ConfigError
from trainer.settings import OptimizerConfig

OF_THE_HOST = {
    "data.holdout",
    "offload.optimizer_fraction",
    "train.stop_seconds",
    "watchdog.seconds",
    "watchdog.compile_seconds",
}
"""Numbers that no device ever has."""
HELD = "float32, which devices compute in, makes"


def numbers(schema: Any = Config, prefix: KeyPath = ()) -> Iterator[tuple[str, Any]]:
    """Every key that may be a number with a fraction."""
    for name, info in fields(schema).items():
        if "float" in str(info.annotation).replace("float32", "").replace("float16", ""):
            yield ".".join((*prefix, name)), info
        yield from numbers(info.annotation, (*prefix, name))


def test_every_number_says_whose_it_is() -> None:
    found = dict(numbers())
    on_devices = {key for key, info in found.items() if any(isinstance(item, Float32) for item in info.metadata)}
    assert on_devices | OF_THE_HOST == found.keys()
    assert not on_devices & OF_THE_HOST


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1e39", rf"expected a number \(at least 0\), got 1e\+39; {HELD} inf of it"),
        ("optimizer.learning_rate=1" + "0" * 40, f"{HELD} inf of it"),
        ("optimizer.learning_rate=1e-50", f"{HELD} 0 of it"),
        ("optimizer.epsilon=1e-50", rf"expected a number \(above 0\), got 1e-50; {HELD} 0 of it"),
        ("optimizer.epsilon=1e-40", f"{HELD} 0 of it"),  # float32 has it, and XLA does not
        ("optimizer.beta2=0.9999999999", rf"\(at least 0 and below 1\), got 0.9999999999; {HELD} 1 of it"),
        ("model.dropout=0.9999999999", f"{HELD} 1 of it"),
        ("optimizer.clip=1e39", f"or null, got 1e\\+39; {HELD} inf of it"),
        ("model={rope_scaling: {factor: 1e39}}", f"model.rope_scaling.factor: .*{HELD} inf of it"),
        ("model.rope_theta=0.5", r"expected a number \(at least 1\), got 0.5$"),
        ('optimizer.learning_rate="1e-5"', 'expected a number .*, got "1e-5"; write it without quotes'),
        ("optimizer.learning_rate=-1", r"expected a number \(at least 0\), got -1$"),
        ("optimizer.learning_rate=.nan", "write|expected a number"),
        ("failures={on_spike: skip, spike_loss: 1.00000000001}", f"{HELD} 1 of it"),
        ("optimizer.warmup_steps=3000000000", "at least 0 and at most 2147483647"),
        ("train.steps=3000000000", "at least 0 and at most 2147483647"),
        ("precision={compute: float16, loss_scale: {window: 3000000000}}", "at least 1 and at most 2147483647"),
        ("failures={on_spike: skip, window: 100000000000000000000}", "at least 1 and at most 1000000"),
    ],
)
def test_a_number_that_devices_make_another_of_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({}, [override])


@pytest.mark.parametrize("rate", [0, 0.0, 1, 3e-4, 1.2e-38, 3.4e38])
def test_what_float32_holds_stays_as_it_is_written(rate: float) -> None:
    assert Config.from_dict({"optimizer": {"learning_rate": rate}}).optimizer.learning_rate == rate


def test_a_section_made_in_python_is_held_to_the_same() -> None:
    with pytest.raises(ValidationError, match=f"{HELD} inf of it"):
        OptimizerConfig(learning_rate=1e39)
