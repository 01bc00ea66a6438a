"""The doctor finds what is missing, says how to get it, and fails when the machine cannot train."""

import io
import json
import sys
import types
from pathlib import Path

import pytest
from rich.console import Console

from trainer import doctor as doctor_module
from trainer.config import Config
from trainer.doctor import doctor


class FakeTrainer:
    def __init__(self, config: Config) -> None:
        self.config = config

    def train(self) -> None:
        print("chatter that belongs into no table")
        folder = Path(self.config.run.folder)
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 6.25}) + "\n")


class BrokenTrainer(FakeTrainer):
    def train(self) -> None:
        raise RuntimeError("no [cuda] kernel")


def report(monkeypatch: pytest.MonkeyPatch, trainer: type[FakeTrainer] | None) -> tuple[int, str]:
    """Exit code and text of the doctor with this trainer; None: one that cannot be imported."""
    module = types.ModuleType("trainer.trainer")
    if trainer is not None:
        module.Trainer = trainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trainer.trainer", module)
    console = Console(file=io.StringIO(), width=200)
    code = doctor(console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_machine_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = report(monkeypatch, FakeTrainer)
    assert code == 0
    assert "loss 6.250" in text
    assert "chatter" not in text
    for subject in (
        "python",
        "jaxlib",
        "host memory",
        "8 x cpu",
        "GPU memory",
        "XLA_CLIENT_MEM_FRACTION",
        "disk",
        "GPUs",
    ):
        assert subject in text


def test_a_step_that_fails_is_shown_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = report(monkeypatch, BrokenTrainer)
    assert code == 1
    assert text.count("RuntimeError: no [cuda] kernel") == 2
    assert "Traceback" in text
    assert "jaxlib" in text


def test_a_trainer_that_cannot_be_imported_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = report(monkeypatch, None)
    assert code == 1
    assert "ImportError" in text


@pytest.mark.parametrize(
    ("driver", "plugin", "in_use", "state", "says"),
    [
        (False, None, False, "ok", "on the CPU"),
        (False, "jax-cuda13-plugin 0.10.2", False, "ok", "on the CPU"),
        (True, None, False, "warn", "pip install 'meshwright[cuda]'"),
        (True, "jax-cuda13-plugin 0.10.2", False, "warn", "JAX_PLATFORMS"),
        (True, "jax-cuda13-plugin 0.10.2", True, "ok", "jax-cuda13-plugin 0.10.2"),
    ],
)
def test_what_is_missing_for_gpus(driver: bool, plugin: str | None, in_use: bool, state: str, says: str) -> None:
    finding = doctor_module._gpu_finding(driver, plugin, in_use)
    assert finding.state == state
    console = Console(file=io.StringIO(), width=200)
    console.print(doctor_module._table([finding]))
    assert says in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=2**30))
    (finding,) = doctor_module._disks(None)
    assert finding.state == "warn"
    assert str(tmp_path) in finding.text
