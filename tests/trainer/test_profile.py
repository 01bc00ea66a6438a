"""A trace of a few steps: which steps are in it, and that it is closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from trainer.profile import Profile
from trainer.settings import ProfileConfig


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of JAX's profiler, in order."""
    calls: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: calls.append(f"start {folder}"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    return calls


def run(profile: Profile, calls: list[str], first: int, last: int) -> list[str]:
    """Steps `first` + 1 to `last`, each noted beside what the profiler is asked."""
    with profile:
        for step in range(first + 1, last + 1):
            calls.append(str(step))
            profile.after(step, None)
    return calls


@pytest.mark.parametrize(
    ("config", "first", "expected"),
    [
        (ProfileConfig(start=0, steps=2), 0, ["start trace", "1", "2", "stop", "3", "4", "5"]),
        (ProfileConfig(start=1, steps=2), 0, ["1", "start trace", "2", "3", "stop", "4", "5"]),
        (ProfileConfig(start=3, steps=2), 3, ["start trace", "4", "5", "stop"]),
        (ProfileConfig(start=2, steps=2), 3, ["4", "5"]),
        (ProfileConfig(start=4, steps=9), 0, ["1", "2", "3", "4", "start trace", "5", "stop"]),
        (None, 0, ["1", "2", "3", "4", "5"]),
    ],
    ids=["from the start", "later", "of a resumed run", "already past", "ended by the loop", "none"],
)
def test_the_steps_traced(traces: list[str], config: ProfileConfig | None, first: int, expected: list[str]) -> None:
    assert run(Profile(config, Path("trace"), first), traces, first, 5) == expected


def test_a_loop_that_fails_closes_the_trace(traces: list[str]) -> None:
    with pytest.raises(OSError, match="full"), Profile(ProfileConfig(start=0, steps=2), Path("trace"), 0):
        raise OSError("full")
    assert traces == ["start trace", "stop"]


def test_a_trace_is_there_for_xprof(tmp_path: Path) -> None:
    double: Callable[[Any], Any] = jax.jit(lambda x: 2 * x)
    with Profile(ProfileConfig(start=1, steps=1), tmp_path, 0) as profile:
        for step in range(1, 4):
            profile.after(step, double(jnp.ones(3)))
    (trace,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert trace.stat().st_size > 0
