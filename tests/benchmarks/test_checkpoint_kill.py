"""A sample of the kills of `benchmarks.checkpoint_kill`, and whether it would notice one that was not survived."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import checkpoint_kill
from benchmarks.checkpoint_kill import Trial


def test_a_killed_process_leaves_a_complete_newest_checkpoint(tmp_path: Path) -> None:
    trials = checkpoint_kill.run(5, tmp_path / "checkpoints", seed=1)
    assert [trial.problem for trial in trials] == [None] * 5


def test_what_is_not_survived_is_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    trials = [Trial("begins", None), Trial("hands over", "step 2: step are not what was saved")]
    monkeypatch.setattr(checkpoint_kill, "run", lambda *_: trials)
    assert checkpoint_kill.main(tries=2, seed=0) == 1
    output = capsys.readouterr().out
    assert "NOT SURVIVED: killed while it is written behind: step 2" in output
    assert output.endswith("survived 1 of 2 kills (SIGKILL)\n")
