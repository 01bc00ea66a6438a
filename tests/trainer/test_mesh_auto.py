"""`mesh: auto`: what is written is kept, and the rest is found for the devices that are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import pytest
import yaml
from typer.testing import CliRunner

from tests.trainer import small
from tests.trainer.planner.arrangements import TINY
from trainer import Config, ConfigError, Trainer
from trainer.cli import app
from trainer.config_auto import SEARCHED, AutoMesh
from trainer.description import resolve
from trainer.planner import Arrangement, auto, estimate, load
from trainer.planner.auto import fill_in, fill_in_here
from trainer.planner.ranking import MARGIN

OPEN: dict[str, Any] = {**TINY, "batch": {"global": 16, "sequence": 64}, "mesh": "auto"}
POOL = 60 * 2**30
GROWS = 1.3
"""What the compiler of these tests makes of what is planned."""

Devices = Callable[..., Sequence[jax.Device]]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Devices:
    """GPUs that say what real ones do, and a compiler for them that takes no time."""

    def compile_for(config: Config, devices: Sequence[jax.Device]) -> SimpleNamespace:
        return SimpleNamespace(total=compiled(config))

    def make(number: int, kind: str = "NVIDIA H100 80GB HBM3", pool: float = POOL) -> Sequence[jax.Device]:
        device = SimpleNamespace(
            platform="gpu", device_kind=kind, process_index=0, memory_stats=lambda: {"bytes_limit": pool}
        )
        return cast("Sequence[jax.Device]", [device] * number)

    monkeypatch.setattr(auto, "compile_for", compile_for)
    return make


def compiled(config: Config) -> float:
    """Bytes of the step of a config, by the compiler of these tests."""
    return GROWS * (estimate(Arrangement.of(config), load("h100"), 8).bytes_per_gpu - load("h100").reserved_bytes)


# What is written beside `mesh: auto` -> what of it is fixed.
WRITTEN: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"zero": {"stage": 1}}, {"zero.stage"}),
    ({"zero": {"persist_below": 8}}, set()),
    ({"batch": {"global": 16, "micro": None}, "pipeline": {"layers": None}}, set()),
    ({"batch": {"global": 16, "micro": 2}, "recompute": "full"}, {"batch.micro", "recompute.policy"}),
    ({"pipeline": {"keep": "inputs", "head": "last"}}, {"pipeline.keep", "pipeline.head"}),
]


@pytest.mark.parametrize(("tree", "fixed"), WRITTEN, ids=[str(tree) for tree, _ in WRITTEN])
def test_what_is_written_is_fixed_and_comes_back_from_yaml(
    tree: dict[str, Any], fixed: set[str], tmp_path: Path
) -> None:
    config = Config.from_dict({"mesh": "auto", **tree})
    assert config.mesh == AutoMesh(fixed=frozenset(fixed))
    file = tmp_path / "auto.yaml"
    file.write_text(config.to_yaml())
    assert Config.load(file) == config
    assert {
        f"{section}.{key}" for section, keys in config.to_dict().items() if isinstance(keys, dict) for key in keys
    } & {*SEARCHED} == fixed


def test_an_override_opens_the_mesh_and_one_fixes_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("mesh: {data: 8}\nbatch: {micro: 2}\n")
    assert Config.load(file, ["mesh=auto", "zero.stage=3"]).mesh == AutoMesh(
        fixed=frozenset({"batch.micro", "zero.stage"})
    )
    file.write_text("mesh: auto\n")
    assert Config.load(file, ["mesh={tensor: 2}"]).mesh.tensor == 2


WRONG = [
    ("mesh: fast", [], "x.yaml:1: mesh: no file 'fast' in "),
    ("mesh: fast", [], "; give a file, the section itself, such as mesh: {data: 4, tensor: 2}, or mesh: auto"),
    (
        "mesh: {data: auto}",
        [],
        'x.yaml:1: mesh.data: expected a whole number (at least -1 and at most 1000000), got "auto"',
    ),
    ("mesh: auto", ["mesh.tensor=2"], "mesh.tensor=2: mesh is 'auto' (x.yaml:1), which has no keys; give the whole "),
    ("mesh: auto\nzero: {stage: 4}", [], "x.yaml:2: zero.stage: expected"),
    (
        "mesh: auto\npipeline: {schedule: 1f2b}",
        [],
        "x.yaml:2: pipeline.schedule: there is no schedule '1f2b'; did you ",
    ),
]


@pytest.mark.parametrize(("text", "overrides", "message"), WRONG)
def test_what_is_wrong_is_said(
    text: str, overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        Config.load("x.yaml", overrides)
    assert message in str(error.value)


def test_a_search_chooses_no_other_setting() -> None:
    with pytest.raises(ValueError, match=r"no search chooses seed"):
        AutoMesh(fixed=frozenset({"seed"}))


@pytest.mark.parametrize(
    "tree",
    [{}, {"zero": {"stage": 3}}, {"pipeline": {"keep": "inputs"}, "batch": {"global": 16, "micro": 1, "sequence": 64}}],
)
def test_on_gpus_the_fastest_that_compiles_to_fit_is_taken(tree: dict[str, Any], gpus: Devices) -> None:
    config = Config.from_dict(OPEN | tree)
    said: list[str] = []
    laid_out, taken = fill_in_here(config, gpus(4), said.append)
    assert laid_out.mesh.num_devices == 4
    assert laid_out.batch.micro is not None
    for section, keys in tree.items():
        if section != "pipeline" or laid_out.mesh.pipeline > 1:
            assert all(laid_out.to_dict()[section][key] == value for key, value in keys.items())
    assert Config.from_dict(laid_out.to_dict()) == laid_out
    assert said[0].startswith("mesh: auto: searching for 4 x h100 with 60.0 GiB for JAX")
    assert said[1].startswith("compiling ")
    assert taken
    assert taken.startswith(f"mesh: auto takes {said[-1].removeprefix('compiling ')}: ")
    assert "of each h100 with 60.0 GiB for JAX" in taken


def test_memory_that_jax_may_use_is_what_counts(gpus: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """The more, the faster."""
    monkeypatch.setattr(import_module("trainer.planner.search"), "TRACED", 0)
    config = Config.from_dict(OPEN)
    seconds = []
    for pool in (6 * 2**20, POOL):
        laid_out, _ = fill_in_here(config, gpus(4, pool=pool))
        assert compiled(laid_out) <= (1 - MARGIN) * pool
        seconds.append(estimate(Arrangement.of(laid_out), load("h100"), 8).seconds.total)
    assert seconds[0] > seconds[1]
    with pytest.raises(ConfigError, match=r"nothing fits.* h100 with 0.0 GiB for JAX \(XLA_CLIENT_MEM_FRACTION"):
        fill_in_here(config, gpus(4, pool=2**20))


def test_gpus_that_are_not_described_are_refused(gpus: Devices) -> None:
    with pytest.raises(ConfigError, match=r"^mesh: auto knows NVIDIA A100-SXM4-80GB, .*, and not NVIDIA H100 PCIe; .*"):
        fill_in_here(Config.from_dict(OPEN), gpus(8, "NVIDIA H100 PCIe"))


def test_a_micro_batch_that_divides_no_batch_is_refused(gpus: Devices) -> None:
    config = Config.from_dict(OPEN, {"batch.micro": 3})
    with pytest.raises(ConfigError, match=r"mesh\.replica x mesh\.data x batch\.micro=3 must divide batch\.global=16"):
        fill_in_here(config, gpus(4))


def test_several_processes_are_refused(gpus: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"for one process, and there are 2; train what meshwright search"):
        fill_in_here(Config.from_dict(OPEN), gpus(8))


def test_the_same_is_planned_for_gpus_that_are_not_there(tmp_path: Path) -> None:
    file = tmp_path / "auto.yaml"
    file.write_text(yaml.safe_dump(OPEN | {"zero": {"stage": 1}}))

    def run(*args: str) -> Any:
        return CliRunner().invoke(app, [*args])

    laid_out, taken = fill_in(Config.load(file), load("a100"), 4, 8)
    planned = json.loads(run("plan", str(file), "--gpu", "a100", "--gpus", "4", "--json").stdout)
    found = json.loads(run("search", str(file), "--gpu", "a100", "--gpus", "4", "--json", "--top", "1").stdout)
    assert planned["assumed"] == taken
    assert planned["mesh"] == laid_out.mesh.sizes
    assert Config.from_dict(found["config"]) == laid_out
    assert found["fixed"] == ["zero.stage"]
    assert Trainer(Config.load(file)).plan("a100", 4).assumed == taken
    assert "mesh: auto needs a number of GPUs, such as --gpus 8" in run("plan", str(file)).stderr
    for command in ("show", "schedule"):
        result = run(command, str(file))
        assert result.exit_code == 2
        assert "to see what it takes on others: meshwright plan CONFIG --gpu h100 --gpus 8" in result.stderr


def test_a_run_on_cpus_goes_on_with_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = small.write_text(tmp_path / "text")
    tree = {**small.tree(text, tmp_path / "run"), "mesh": "auto"}
    trainer = Trainer(Config.from_dict(tree, {"train.steps": 2, "train.eval_every": None}))
    trainer.train()
    assert "mesh: auto takes data 8: on CPUs nothing is searched" in capsys.readouterr().out
    written = Config.load(tmp_path / "run/config.yaml")
    assert written.mesh.sizes["data"] == 8
    assert written == trainer.config
    resumed = Trainer(written)
    resumed.train()
    assert resumed.taken is None
    assert resumed.step == 2
    with pytest.raises(ConfigError, match=r"data 8 needs 8 devices, and there are 4; change an axis"):
        _ = Trainer(written, jax.devices()[:4]).config
    again = Trainer(Config.from_dict(tree), jax.devices()[:4])
    assert again.config.mesh.data == 4
    assert again.step == 2


def test_a_mesh_that_is_given_is_not_touched() -> None:
    config, _ = resolve(Config.from_dict({**TINY, "mesh": {"data": 4}}))
    assert fill_in_here(config, jax.devices()) == (config, None)
    assert fill_in(config, load("h100"), None, 8) == (config, None)
