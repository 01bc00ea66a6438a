"""`meshwright plan --compile`: the step is compiled for absent GPUs, or it is said what that needs."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from tests.trainer.planner.on_cpu import LAYERED, PIPELINED, step_on_cpu
from trainer.cli import app
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.planner import compiled, plan
from trainer.planner.compiled import PLUGINS, TOOLS, check_installed
from trainer.planner.show_compiled import compared
from trainer.planner.show_plan import show_plan

CONFIG = str(Path(__file__).parents[3] / "configs/gpt2-124m.yaml")
SMALL = ["model.layers=2", "mesh={data: 2}", "batch={global: 4, micro: 1, sequence: 128}"]
INSTALLED = all(map(compiled._version, (*PLUGINS, *TOOLS)))


def have(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    monkeypatch.setattr(compiled, "_version", versions.get)


def test_what_is_missing_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, dict.fromkeys(PLUGINS, jax.__version__) | {"nvidia-nvvm": "13.5"})
    result = CliRunner().invoke(app, ["plan", CONFIG, "--compile"])
    assert result.exit_code == 2
    of_jax = " ".join(f"{plugin}=={jax.__version__}" for plugin in PLUGINS)
    assert f"needs nvidia-cuda-nvcc; no GPU is needed: pip install {of_jax} nvidia-cuda-nvcc" in result.stderr


def test_plugins_of_another_jax_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, dict.fromkeys((*PLUGINS, *TOOLS), "0.9.9"))
    with pytest.raises(ConfigError, match=f"of jax's version {jax.__version__}, found jax-cuda13-plugin 0.9.9"):
        check_installed()


@pytest.mark.parametrize("layout", [LAYERED, PIPELINED], ids=" ".join)
def test_the_state_of_a_compiled_step_is_the_plans(layout: tuple[str, ...]) -> None:
    """For the CPU's devices, which are there."""
    step = step_on_cpu(*layout)
    asked = step.program.config
    found = compared(plan(asked), step)
    sequences = asked.batch.global_ // asked.mesh.data
    arrays_of_a_batch = 5 * 4
    over = found["state"]["compiled"] - found["state"]["planned"]
    assert 0 < over <= 2 * arrays_of_a_batch * sequences * asked.batch.sequence
    assert found["temporary"]["compiled"] > 0
    assert found["total"]["compiled"] == found["state"]["compiled"] + found["temporary"]["compiled"]
    assert set(found["seconds"]) == {"trace", "lower", "compile"}


@pytest.mark.skipif(not INSTALLED, reason="the extra `plan` is not installed")
def test_a_step_is_compiled_for_gpus_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(Config.load(CONFIG, SMALL), "h100", None, 8, json=True, compiled=True)
    found = json.loads(capsys.readouterr().out)["compiled"]
    assert abs(found["state"]["planned"] / found["state"]["compiled"] - 1) < 0.01
    assert found["seconds"]["compile"] > 0
    assert found["ledger"]["equal"]
    assert [line["name"] for line in found["ledger"]["wire"]] == [
        "all_gather over data, bfloat16",
        "all_reduce over data, float32",
        "reduce_scatter over data, float32",
    ]
    assert found["overlap"]["xla"] == {"xla_gpu_enable_latency_hiding_scheduler": True}
    assert 0 < found["overlap"]["share"] <= 1
