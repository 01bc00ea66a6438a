"""What stands before JAX starts: its share of a GPU, and a plugin without a GPU that is not told with a traceback."""

from __future__ import annotations

import logging

import pytest

from trainer import Config, Trainer, jax_start
from trainer.gpu_memory import FRACTION, THEIRS, VARIABLE
from trainer.jax_start import LOGGER, prepare_jax

SAID = "Jax plugin configuration error: Exception when calling %s.initialize()"


def fails(plugin: str, reason: str) -> None:
    """As JAX tells it."""
    try:
        raise RuntimeError(reason)
    except RuntimeError:
        logging.getLogger(LOGGER).exception(SAID, plugin)


@pytest.mark.parametrize(
    ("plugin", "driver", "said"),
    [
        ("jax_plugins.xla_cuda13", False, []),
        (
            "jax_plugins.xla_cuda13",
            True,
            ["jax_plugins.xla_cuda13.initialize(): cuDNN is not there (meshwright doctor"],
        ),
        ("jax_plugins.other", False, ["jax_plugins.other.initialize(): cuDNN is not there (meshwright doctor tells"]),
    ],
)
def test_a_plugin_that_fails_is_a_line_and_none_where_there_is_no_gpu(
    plugin: str, driver: bool, said: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jax_start, "has_driver", lambda: driver)
    for _ in range(2):
        prepare_jax()
    fails(plugin, "cuDNN is not there\nand more")
    assert len(caplog.records) == len(said)
    assert all(text in caplog.text for text in said)
    assert "Traceback" not in caplog.text


def test_what_else_jax_says_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    prepare_jax()
    logging.getLogger(LOGGER).warning("something else of %s", "cuda")
    assert "something else of cuda" in caplog.text


def test_a_trainer_asks_for_its_share_before_jax_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    for name in THEIRS:
        monkeypatch.delenv(name, raising=False)
    Trainer(Config())
    import os

    environment = {name: os.environ[name] for name in THEIRS if name in os.environ}
    assert environment == {VARIABLE: str(FRACTION)}
