"""The benchmarks of speed run, and compare what they say they compare."""

from __future__ import annotations

import math

import jax
import pytest

from benchmarks import overhead, speed
from benchmarks.common import Sizes, Times, ratio

TINY = Sizes(layers=2, hidden=32, heads=4, ffn=48, vocab=320, sequence=16, batch=4)


def test_a_row_is_compared_with_the_yardstick() -> None:
    times = Times(cpu=[1.0, 3.0, 2.0])
    assert speed.row("meshwright, 1 device", times, Times(cpu=[2.0, 3.0, 4.0])) == [
        "meshwright, 1 device",
        "1.000",
        "2.000",
        "1.45",
        "0.500",
    ]


@pytest.mark.sweep
def test_overhead_trains_and_prints_both_loops(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "STEPS", 2)
    overhead.main(TINY, rounds=2)
    table = capsys.readouterr().out.split("Tokens a second")[-1]
    assert "loop written by hand" in table
    assert "loop with meshwright's model" in table


@pytest.mark.sweep
def test_every_variant_trains_a_model_of_the_same_size() -> None:
    """All start from guessing, and fall."""
    sizes = set()
    for name, make in speed.variants(TINY).items():
        step = make()
        weights = step.state.parameters if isinstance(step, speed.OurStep) else step.params
        sizes.add(sum(leaf.size for leaf in jax.tree.leaves(weights)))
        losses = [float(getattr(value, "loss", value)) for value in (step() for _ in range(30))]
        assert losses[0] == pytest.approx(math.log(TINY.vocab), rel=0.02), name
        assert losses[-1] < losses[0], name
    assert len(sizes) == 1


def test_a_ratio_pairs_the_rounds() -> None:
    assert ratio([1.0, 20.0, 3.0], [2.0, 40.0, 3.0]) == 0.5


def test_what_fails_is_not_measured() -> None:
    times = Times()
    with pytest.raises(ZeroDivisionError), times.measured(1):
        raise ZeroDivisionError
    assert times.cpu == []
