"""A run with a bad batch: it stops, or it goes back and ends as if that batch had never been there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.trainer import small
from tests.trainer.failures import bad_batches
from trainer import Config, Trainer
from trainer.cli import app
from trainer.commands.exit_codes import PERMANENT
from trainer.errors import TrainingError
from trainer.failures.rollbacks import Rollback
from trainer.lines import read_jsonl

STEPS = 10
ROLLBACK = {"on_nonfinite": "rollback", "on_spike": "rollback", "window": 3}
Make = Callable[..., Trainer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A trainer of ten steps, with a line every two and a checkpoint every three."""
    small.write_text(tmp_path / "text")

    def make(name: str = "run", failures: Any = ROLLBACK, **overrides: Any) -> Trainer:
        tree = small.tree(tmp_path / "text", tmp_path / name)
        tree["train"] = {"steps": STEPS, "log_every": 2, "checkpoint_every": 3, "keep_checkpoints": 3}
        return Trainer(Config.from_dict(tree | {"failures": failures} | overrides))

    return make


def end_of(trainer: Trainer) -> dict[str, np.ndarray]:
    return jax.device_get(trainer.state)


def without(trainer: Trainer, batches: list[int]) -> dict[str, np.ndarray]:
    """The end of a run that never had these batches."""
    trainer.rollbacks.done.append(Rollback(step=0, back_to=0, batches=batches, global_batch=8, reason=""))
    trainer.train()
    return end_of(trainer)


@pytest.mark.parametrize("bad", [{"nan": (0,)}, {"nan": (4, 7)}, {"spike": (9,)}], ids=str)
def test_it_ends_as_if_the_bad_batches_had_never_been_there(
    make: Make, monkeypatch: pytest.MonkeyPatch, bad: dict[str, tuple[int, ...]]
) -> None:
    left_out = [batch for batches in bad.values() for batch in batches]
    never = without(make("never"), left_out)
    bad_batches.put(monkeypatch, **bad)
    run = make()
    run.train()
    assert [batch for rollback in run.rollbacks.done for batch in rollback.batches] == left_out
    assert run.step == STEPS
    jax.tree.map(np.testing.assert_array_equal, end_of(run), never)
    assert [record["step"] for record in read_jsonl(run.folder / "metrics.jsonl")] == [1, 2, 4, 6, 8, 10]
    events = [event for event in read_jsonl(run.folder / "events.jsonl") if event["event"] == "rollback"]
    assert [event["batches"] for event in events] == [rollback.batches for rollback in run.rollbacks.done]
    assert all(event["seconds_lost"] > 0 for event in events)


def test_what_is_left_out_stays_out_after_a_restart_on_another_mesh(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = without(make("never"), [4])
    bad_batches.put(monkeypatch, nan=(4,))
    make().train(7)
    resumed = make(mesh={"data": 8})
    assert (resumed.step, [rollback.batches for rollback in resumed.rollbacks.done]) == (7, [[4]])
    resumed.train()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5), end_of(resumed), never)


def test_a_restart_remembers_what_was_usual(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spike is in the second step of the process, whose window is of three."""
    bad_batches.put(monkeypatch, spike=(7,))
    make().train(6)
    resumed = make()
    resumed.train()
    assert [(rollback.back_to, rollback.batches) for rollback in resumed.rollbacks.done] == [(6, [7])]


def test_it_goes_as_far_back_as_it_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_batches.put(monkeypatch, spike=(6,))
    run = make(failures=ROLLBACK | {"steps_back": 2})
    run.train(8)
    (rollback,) = run.rollbacks.done
    assert (rollback.back_to, rollback.batches) == (3, [6])
    assert run.checkpoints.steps() == [3, 6, 8]


@pytest.mark.parametrize("kind", ["nonfinite", "spike"])
def test_it_stops_and_says_where(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    bad_batches.put(monkeypatch, **{"nan" if kind == "nonfinite" else "spike": (6,)})
    run = make(failures={f"on_{kind}": "stop"} | ({"window": 3} if kind == "spike" else {}))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(run.config.to_dict()), encoding="utf-8")
    result = CliRunner().invoke(app, ["train", str(tmp_path / "config.yaml")])
    assert result.exit_code == PERMANENT  # started again, it would stop there again
    why = "its loss is not finite" if kind == "nonfinite" else "its gradient norm, "
    assert result.stderr.startswith(f"error: step 7 went wrong: {why}")
    assert "on batch 6: samples 48 to 55); the newest checkpoint is that of step 6" in result.stderr
    assert run.checkpoints.steps() == [3, 6]
    *_, end = read_jsonl(run.folder / "events.jsonl")
    assert (end["event"], end["reason"][:18]) == ("end", "step 7 went wrong:")


def test_a_run_that_has_diverged_is_no_success(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the steps of the process before count."""
    diverges = {"learning_rate": 1e30, "schedule": "constant"}
    run = make(failures={"most_skips": 8}, optimizer=diverges)
    run.train(6)
    said = re.search(r"WARNING: the last (\d) steps changed nothing", capsys.readouterr().out)
    assert said is not None
    assert int(said[1]) >= 3
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(run.config.to_dict()), encoding="utf-8")
    result = CliRunner().invoke(app, ["train", str(tmp_path / "config.yaml")])
    assert result.exit_code == PERMANENT
    assert result.stderr.startswith("error: the run has diverged: the last 8 steps, ")
    assert "the newest checkpoint is that of step 6. Lower optimizer.learning_rate" in result.stderr


def test_it_does_not_go_back_for_ever(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_batches.put(monkeypatch, nan=tuple(range(4, 99)))
    run = make(failures={"on_nonfinite": "rollback", "most_rollbacks": 2})
    with pytest.raises(
        TrainingError, match="has gone back 2 times already, and the newest checkpoint is that of step 3"
    ):
        run.train()


def test_nothing_is_saved_after_a_bad_step_that_nobody_has_seen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come later than the checkpoint."""
    bad_batches.put(monkeypatch, nan=(4,))
    run = make(train={"steps": 10, "log_every": 10, "checkpoint_every": 3})
    run.train(7)
    assert [(rollback.step, rollback.back_to) for rollback in run.rollbacks.done] == [(6, 3)]


def test_a_spike_that_is_skipped_changes_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first step of a process, by what the one before it found usual."""
    bad_batches.put(monkeypatch, spike=(6,))
    run = make(failures={"on_spike": "skip", "window": 3})
    run.train(6)
    before = end_of(run)
    run.train(1)
    changes = {"step", "skipped"}
    after = end_of(run)
    assert {name for name in after if (after[name] != before[name]).any()} == changes
    run.train()
    assert (run.step, int(end_of(run)["skipped"])) == (STEPS, 1)
    (event,) = (event for event in read_jsonl(run.folder / "events.jsonl") if event["event"] == "skip")
    assert (event["step"], event["reason"][:19]) == (7, "its gradient norm, ")


def test_an_offloaded_optimizer_goes_back_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    offload = {"offload": {"optimizer": "host"}}
    never = without(make("never", **offload), [4])
    bad_batches.put(monkeypatch, nan=(4,))
    run = make(**offload)
    run.train()
    assert len(run.rollbacks.done) == 1
    jax.tree.map(np.testing.assert_array_equal, end_of(run), never)
