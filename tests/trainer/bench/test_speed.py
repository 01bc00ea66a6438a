"""Attention is timed forward and backward; what fails is told, and the rest is timed all the same."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from pallas_kernels.attention import IMPLEMENTATIONS, Implementation
from trainer.bench import speed
from trainer.bench.shapes import CONVENTION, Shape
from trainer.bench.speed import Speed, attention_speeds, speed_table
from trainer.planner.gpu import load
from trainer.tables import wide_console

TINY = Shape(batch=1, sequence=32, heads=2, head_dim=16)


def fails(message: str) -> Implementation:
    def attend(*_: Any, **__: Any) -> jax.Array:
        raise jax.errors.JaxRuntimeError(message)

    return Implementation("fails", lambda _: attend)


def printed(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    wide_console().print(speed_table(*arguments))
    return capsys.readouterr().out


def test_every_implementation_is_timed_whatever_becomes_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "ROUNDS", 1)
    monkeypatch.setitem(IMPLEMENTATIONS, "bad", fails("INTERNAL: ptxas died\nand more"))  # type: ignore[misc]
    monkeypatch.setitem(IMPLEMENTATIONS, "large", fails("RESOURCE_EXHAUSTED: 8 GiB"))  # type: ignore[misc]
    refused = IMPLEMENTATIONS["pallas"]._replace(head_dims=range(1, 16))
    monkeypatch.setitem(IMPLEMENTATIONS, "refused", refused)  # type: ignore[misc]
    told: list[str] = []
    found = {one.implementation: one for one in attention_speeds(jax.devices()[0], [TINY], 0, told.append)}
    assert found.keys() == {"pallas", "reference", "bad", "large"}
    assert len(told) == 4
    for name in ("pallas", "reference"):
        assert not found[name].problem
        assert found[name].forward > 0
        assert found[name].backward > 0
    assert found["bad"].problem == "JaxRuntimeError: INTERNAL: ptxas died"
    assert found["large"].problem == "out of memory"


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes\nmore", "out of memory"),
        ("RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 2", "limit exceeded: requested 2"),
        ("", "RuntimeError: "),
    ],
)
def test_memory_that_is_not_enough_is_told_from_a_kernel_that_is_wrong(message: str, problem: str) -> None:
    assert speed.problem_of(RuntimeError(message)).endswith(problem)


def test_the_table_has_the_part_of_the_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    gpu, shape = load("h100"), Shape(2, 8192, 16, 128)
    half = Speed("fast", shape, 2 * shape.forward.seconds(gpu), 4 * shape.backward.seconds(gpu))
    text = printed(capsys, [half, Speed("bad", shape, problem="out of memory")], gpu)
    row = next(line for line in text.splitlines() if "fast" in line).split()
    assert row[-5:] == ["494.5", "50.0%", "5.559", "247.2", "25.0%"]
    assert "out of memory" in text
    assert CONVENTION in text
    assert "%" not in printed(capsys, [half], None)
