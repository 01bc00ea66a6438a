"""`meshwright search`: the winner is the fastest that fits, what is fixed stays, and the file that it writes is it."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from sharding.pipeline.makers import SCHEDULES
from tests.trainer.planner.arrangements import TINY
from trainer.cli import app
from trainer.config import Config
from trainer.config_auto import SEARCHED, fixed_by
from trainer.errors import ConfigError
from trainer.offload.config import OffloadConfig
from trainer.planner import Arrangement, Estimate, Gpu, compiled, estimate, load, plan, search, show_search
from trainer.planner.candidates import THRIFT, Candidate, Space, divisors
from trainer.planner.flow import lockstep
from trainer.planner.links import Cluster
from trainer.planner.ranking import Ranked, at_least, fewest_bytes

searching = import_module("trainer.planner.search")  # of which the function has the name too

GPUS, GPUS_PER_NODE = 4, 2
FOLDER = Path(__file__).parents[3] / "trainer/planner/gpus"
BATCH = {"global": 4, "sequence": 64}
ODD: dict[str, Any] = {**TINY, "model": {**TINY["model"], "layers": 5}, "batch": BATCH}
"""Layers that no number of stages divides, and few micro-batches."""
GPT3: dict[str, Any] = {
    "model": {"preset": "gpt3-175b"},
    "batch": {"global": 1536, "sequence": 2048},
    "precision": {"compute": "bfloat16"},
}
STAGED = (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 1), ("interleaved_1f1b", 2))
"""Schedules and virtual stages; 3 of them on 2 devices would be more than 5 layers."""
Mesh = tuple[int, int, int, int]


def small(mebibytes: float) -> Gpu:
    """An H100 that has so little memory, all of it for JAX."""
    return dataclasses.replace(load("h100"), memory_bytes=mebibytes * 2**20, memory_fraction=1, reserved_bytes=0)


def mesh_of(made: Estimate) -> Mesh:
    """Replicas of single devices are what `data` is without ZeRO."""
    a = made.arrangement
    return (a.pipeline, 1, a.replica, a.tensor) if a.data == 1 else (a.pipeline, a.replica, a.data, a.tensor)


@pytest.fixture(scope="module")
def every() -> list[Estimate]:
    """Every layout on `GPUS` that `Config` accepts, of all that can be written."""
    made = []
    for pipeline, replica, data, tensor in product(divisors(GPUS), repeat=4):
        if pipeline * replica * data * tensor != GPUS:
            continue
        mesh = {"pipeline": pipeline, "replica": replica, "data": data, "tensor": tensor}
        staged = product(STAGED, ("spread", "last")) if pipeline > 1 else [(STAGED[0], "spread")]
        for ((schedule, virtual), head), (keep, policy), zero, micro in product(
            staged, THRIFT, range(4), divisors(BATCH["global"])
        ):
            tree = {
                **ODD,
                "mesh": mesh,
                "batch": {**BATCH, "micro": micro},
                "zero": {"stage": zero},
                "recompute": {"policy": policy},
            }
            if pipeline > 1:
                tree["pipeline"] = {"schedule": schedule, "virtual_stages": virtual, "head": head, "keep": keep}
            with suppress(ValueError):
                made.append(estimate(Arrangement.of(Config.from_dict(tree)), small(1), GPUS_PER_NODE))
    return made


@pytest.mark.parametrize("part", [0.02, 0.1, 0.5, 1])
def test_nothing_that_fits_is_faster(every: list[Estimate], part: float) -> None:
    """On every mesh; `part` of all that can be written fits."""
    needed = sorted(made.bytes_per_gpu for made in every)
    limit = needed[int(part * (len(needed) - 1))]
    fastest: dict[Mesh, float] = {}
    for made in every:
        if made.bytes_per_gpu <= limit:
            mesh = mesh_of(made)
            fastest[mesh] = min(fastest.get(mesh, math.inf), made.seconds.total)
    found: dict[Mesh, float] = {}
    choices = list(Ranked(Space(Config.from_dict(ODD), GPUS), Cluster(small(limit / 2**20), GPUS_PER_NODE)))
    for choice in choices:
        found.setdefault(mesh_of(choice.estimate), choice.seconds)
    assert found == pytest.approx(fastest)
    assert [choice.seconds for choice in choices] == sorted(choice.seconds for choice in choices)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_takes_at_least_what_it_is_judged_by(schedule: str) -> None:
    for stages, chunks, micro_batches in product((2, 3, 5, 8), (1, 2, 3, 6), (1, 2, 5, 8, 9, 16, 21)):
        if chunks > 1 and schedule != "interleaved_1f1b":
            continue
        exact, least = (flow(schedule, stages, chunks, micro_batches) for flow in (lockstep, at_least))
        assert least.rounds <= exact.rounds + 1e-9
        assert least.alive <= exact.alive


FIXED: list[tuple[dict[str, Any], Callable[[Candidate], bool]]] = [
    ({"zero.stage": 1}, lambda chosen: chosen.zero == 1),
    ({"mesh.tensor": 2, "mesh.data": 1}, lambda chosen: chosen.tensor == 2 and chosen.data == 1),
    ({"mesh.pipeline": 2, "pipeline.layers": [2, 3]}, lambda chosen: chosen.layers == (2, 3)),
    ({"mesh.pipeline": 2, "pipeline.schedule": "gpipe"}, lambda chosen: chosen.schedule == "gpipe"),
    ({"mesh.pipeline": 2, "pipeline.keep": "inputs"}, lambda chosen: chosen.keep == "inputs"),
    (
        {"batch.micro": 2, "recompute": {"policy": "full"}},
        lambda chosen: (chosen.micro, chosen.recompute) == (2, "full"),
    ),
]


@pytest.mark.parametrize(("settings", "kept"), FIXED, ids=[", ".join(settings) for settings, _ in FIXED])
def test_what_is_fixed_stays(settings: dict[str, Any], kept: Callable[[Candidate], bool]) -> None:
    config = Config.from_dict(ODD, settings)
    space = Space(config, GPUS, fixed_by(config, [tuple(key.split(".")) for key in settings]))
    choices = list(Ranked(space, Cluster(load("h100"), GPUS_PER_NODE)))
    assert choices
    assert all(kept(choice.candidate) for choice in choices)


GROWS = 1.25
"""What the compiler of these tests makes of a plan."""


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA that is there, takes no time and sets aside more than was planned."""

    def compile_step(config: Config, gpu: Gpu, gpus_per_node: int) -> SimpleNamespace:
        planned = estimate(Arrangement.of(config), gpu, gpus_per_node).bytes_per_gpu
        return SimpleNamespace(total=GROWS * (planned - gpu.reserved_bytes))

    monkeypatch.setattr(searching, "compile_step", compile_step)
    for module in (searching, show_search):
        monkeypatch.setattr(module, "check_installed", lambda: None)


@pytest.mark.parametrize("part", [0.07, 0.1])
def test_nothing_that_compiles_to_fit_is_faster(
    every: list[Estimate], part: float, compiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused gives its place to the next, and that may be itself with less kept."""
    monkeypatch.setattr(searching, "TRACED", 0)
    needed = sorted(made.bytes_per_gpu for made in every)
    limit = needed[int(part * (len(needed) - 1))]
    fastest = min(made.seconds.total for made in every if GROWS * made.bytes_per_gpu <= limit)
    said: list[str] = []
    found = search(Config.from_dict(ODD), small(limit / 2**20), GPUS, GPUS_PER_NODE, top=2, compiled=1, say=said.append)
    assert found.winner.seconds == pytest.approx(fastest)
    assert found.winner.known_by == "compiled"
    assert found.best[1].known_by == "closed forms"
    assert found.refused
    assert all(choice.bytes_per_gpu > limit for choice in found.refused)
    assert len(said) == len(found.refused) + 1


@pytest.mark.parametrize(("spare", "sure"), [(1.05, False), (1.08, True)])
def test_a_margin_that_is_too_small_is_told(spare: float, sure: bool) -> None:
    config = Config.from_dict(ODD, {"mesh.data": 4})
    made = estimate(Arrangement.of(config), small(1), GPUS_PER_NODE)
    fixed = frozenset(key for key in SEARCHED if key.startswith(("mesh", "zero", "recompute")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "TRACED", 0)
        found = search(config, small(spare * made.bytes_per_gpu / 2**20), GPUS, GPUS_PER_NODE, 1, fixed=fixed)
    assert found.winner.candidate.data == 4
    assert found.winner.bytes_per_gpu == pytest.approx(made.bytes_per_gpu)
    assert found.winner.fits_surely is sure


def test_parts_of_a_micro_batch_are_kept_where_they_have_an_effect() -> None:
    config = Config.from_dict({**ODD, "mesh": "auto", "batch": {**BATCH, "parts": 2}})
    tensor_parallel = {1: False, 2: False}
    for choice in Ranked(Space(config, 2), Cluster(load("h100"), GPUS_PER_NODE)):
        laid_out = Config.from_dict(choice.candidate.on(config.to_dict()))
        assert laid_out.batch.parts == laid_out.mesh.tensor
        tensor_parallel[laid_out.mesh.tensor] = True
    assert all(tensor_parallel.values())


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["search", *args])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Laid out by its own lights, on another number of devices."""
    file = tmp_path / "tiny.yaml"
    layout = {"mesh": {"pipeline": 2, "virtual_devices": 2}, "pipeline": {"layers": [3, 2], "head": "last"}}
    file.write_text(
        yaml.safe_dump({**ODD, **layout, "zero": {"stage": 1, "persist_below": 8}, "run": {"name": "tiny"}})
    )
    return file


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/found.yaml", "no such folder"),
        ("found.txt", "name a file that ends in .yaml or .yml"),
        ("tiny.yaml", "is the config itself"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_search(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr("trainer.planner.show_search.search", lambda *_, **__: pytest.fail("work was done"))
    own = tmp_path / "tiny.yaml"
    own.write_text(config.read_text())
    result = run(str(own), "--gpus", "4", "--out", str(tmp_path / name))
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert own.read_text() == config.read_text()


@pytest.mark.parametrize("overrides", [["mesh.pipeline=4", "pipeline.keep=inputs"], ["mesh.data=1"]], ids=" ".join)
def test_the_file_plans_to_what_was_found(config: Path, tmp_path: Path, overrides: list[str]) -> None:
    out = tmp_path / "found.yaml"
    args = [str(config), *overrides, "--gpus", "4", "--gpu", "a100", "--gpus-per-node", "2", "--out", str(out)]
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    planned = plan(Config.load(out), "a100", 4, 2)
    best = found["best"][0]
    assert planned.seconds_per_step == pytest.approx(best["seconds_per_step"])
    assert planned.memory.total == pytest.approx(best["bytes_per_gpu"])
    assert found["fixed"] == sorted(override.split("=")[0] for override in overrides)
    assert Config.load(out).run.name == "tiny"
    assert f"#   meshwright train {out}" in out.read_text()


def test_people_are_told_what_was_found_and_why(config: Path) -> None:
    result = run(str(config), "zero.stage=3", "--gpus", "4", "--top", "2")
    assert result.exit_code == 0, result.output
    assert "4 x h100" in result.stdout
    assert "fixed: zero.stage=3" in result.stdout
    assert all(label in result.stdout for label in ("time ", "faster ", "memory "))
    assert len(re.findall(r"^ +(?:\d+ +){5}", result.stdout, re.MULTILINE)) == 2  # meshes, and their ZeRO stages


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("compiled", [False, True], ids=["predicted", "compiled"])
def test_no_number_is_cut_however_narrow_the_terminal(
    every: list[Estimate], compiles: None, width: int, compiled: bool
) -> None:
    found = search(Config.from_dict(ODD), "h100", GPUS, GPUS_PER_NODE, 3, compiled=2 if compiled else 0)
    console = Console(width=width, file=io.StringIO())
    show_search._print(found, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= width
    words = printed.split()
    for heading in ("s/step", "tokens/s/GPU", "MFU", "bubble", "GiB", *(["compiled"] if compiled else [])):
        assert heading in words
    for choice in found.best:
        assert f"{choice.tokens_per_second_per_gpu:,.0f}" in words
        assert f"{choice.estimate.mfu:.1%}" in words


def test_what_compiles_not_to_fit_is_told(
    config: Path, tmp_path: Path, compiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the memory that is planned for the winner, and not all that it is compiled to."""
    args = [str(config), "mesh={data: 4}", "--gpus", "4", "--top", "1"]
    winner = json.loads(run(*args, "--json").stdout)["best"][0]
    assert (winner["known_by"], winner["compiled_bytes"]) == ("traced", None)
    gpu = tmp_path / "gpu.yaml"
    described = yaml.safe_load((FOLDER / "h100.yaml").read_text())
    memory = 1.001 * (winner["bytes_per_gpu"] - winner["overhead_bytes"])
    gpu.write_text(yaml.safe_dump(described | {"memory_bytes": memory, "memory_fraction": 1, "reserved_bytes": 0}))
    out = tmp_path / "found.yaml"
    at_first = run(*args, "--gpu", str(gpu))
    assert re.search(
        r"margin +less than 6%, so only compiling can tell .* the same command with --compile 1", at_first.stdout
    )
    result = run(*args, "--gpu", str(gpu), "--compile", "1", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert re.search(r"refused +data 4, .* compiled, it takes .* too much \(predicted ", result.stdout)
    assert " compiled " in result.stdout
    assert "margin" not in result.stdout
    assert "compiling data 4, " in result.stderr
    assert "# refused" in out.read_text()


def test_what_compiling_needs_is_said_at_once(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_version", {}.get)
    monkeypatch.setattr(searching, "Ranked", None)
    result = run(str(config), "--gpus", "4", "--compile", "2")
    assert result.exit_code == 2
    assert "--compile needs jax-cuda13-plugin, " in result.stderr
    assert ": pip install " in result.stderr


def test_the_best_of_1024_gpus_is_found_in_time() -> None:
    """A minute is for all of the search; its ranking is the part that grows."""
    start = time.perf_counter()
    best = next(Ranked(Space(Config.from_dict(GPT3), 1024), Cluster(load("h100"), 8)))
    assert best.estimate.fits
    assert time.perf_counter() - start < 30


WRONG = [
    (["--gpus", "4", "--gpu", "h1000"], "did you mean h100?"),
    (["--gpus", "7"], "no mesh of so many can be made: mesh.tensor must divide model.heads=4"),
    (["mesh.tensor=3", "--gpus", "3"], "model.heads=4 does not divide by mesh.tensor=3"),
    (["batch.micro=8", "--gpus", "4"], "batch.micro can be one of [1, 2, 4]"),
]


@pytest.mark.parametrize(("args", "message"), WRONG, ids=[" ".join(args) for args, _ in WRONG])
def test_what_cannot_be_searched_is_said(config: Path, args: list[str], message: str) -> None:
    result = run(str(config), *args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_what_is_too_large_is_told_what_would_help() -> None:
    config = Config.from_dict(GPT3, {"zero.stage": 0})
    with pytest.raises(ConfigError) as error:
        search(config, "a100", 16, fixed=frozenset({"zero.stage"}))
    message = str(error.value)
    assert "nothing fits on 16 x a100" in message
    assert "GiB of each" in message
    gpus = int(message.partition("would fit: ")[2].partition(" GPUs")[0])
    assert gpus in (32, 64, 128, 256)
    assert next(Ranked(Space(config, gpus, frozenset({"zero.stage"})), Cluster(load("a100"), 8)))


def test_with_activations_on_the_host_there_are_no_stages_and_the_policy_is_the_config_s() -> None:
    config = Config.from_dict(TINY, ["offload.activations=host", "recompute=full"])
    found = list(Ranked(Space(config, 4), Cluster(load("h100"), GPUS_PER_NODE)))
    assert {choice.candidate.pipeline for choice in found} == {1}
    assert {choice.candidate.recompute for choice in found} == {"full"}
    for choice in found:
        assert Config.from_dict(choice.candidate.on(config.to_dict())).offload.activations == "host"


TIGHT: list[tuple[float, str]] = [
    (0.7, "offload.optimizer=host"),
    (0.45, "zero.stage=3 offload.optimizer=host offload.parameters=host"),
    (
        0.31,
        "zero.stage=3 offload.optimizer=host offload.parameters=host offload.activations=host recompute.policy=full",
    ),
]
"""Of what fits without offload, the part that there is; and what is offloaded then."""


@pytest.mark.parametrize(("part", "offload"), TIGHT, ids=[offload for _, offload in TIGHT])
def test_what_fits_in_no_other_way_is_offloaded_and_no_more_than_that(
    config: Path, tmp_path: Path, part: float, offload: str
) -> None:
    deep = ["model.layers=40", "model.context=512", "batch.sequence=512", "attention.implementation=reference"]
    space = Space(Config.from_dict(ODD, deep), 2)
    gpu, out = tmp_path / "gpu.yaml", tmp_path / "found.yaml"
    described = yaml.safe_load((FOLDER / "h100.yaml").read_text())
    memory = part * fewest_bytes(space, small(1))
    gpu.write_text(yaml.safe_dump(described | {"memory_bytes": memory, "memory_fraction": 1, "reserved_bytes": 0}))
    args = [str(config), *deep, "--gpus", "2", "--top", "1", "--gpu", str(gpu)]
    result = run(*args, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert re.search(rf"offload +nothing fits without {offload}", re.sub(r"\s+", " ", result.stdout))
    assert result.stderr.splitlines()[-1] == f"nothing fits; searching with {offload}"
    found = Config.load(out)
    asked = dict(setting.split("=") for setting in offload.split())
    assert found.offload == OffloadConfig(**{key[8:]: asked[key] for key in asked if key.startswith("offload.")})
    assert plan(found, str(gpu), 2).fits
    with pytest.raises(ConfigError, match=f"would fit: .*; {offload}$"):
        search(space.config, load(str(gpu)), 2)
