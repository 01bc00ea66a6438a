"""`meshwright plan`: what is exact is what the traced step has, links are where devices stand, and advice helps."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.trainer.commands import ROOT, without_devices
from tests.trainer.planner.arrangements import TINY, tiny
from trainer.cli import app
from trainer.config import Config
from trainer.description import describe
from trainer.errors import ConfigError
from trainer.planner import Plan, plan
from trainer.planner.published import RUNS, read
from trainer.planner.show_plan import _wire, as_dict, show_plan
from trainer.planner.words import fullest
from trainer.trace import trace_step
from trainer.trainer import Trainer
from trainer.wire import busiest

GOLDEN = ROOT / "tests/golden"
H100_FILE = ROOT / "trainer/planner/gpus/h100.yaml"
CONFIGS = sorted(file.stem for file in (ROOT / "configs").glob("*.yaml"))
GPUS = {
    "bloom-176b": "a100",
    "gpt2-124m": "a100",
    "llama3-8b": "h100",
    "llama3.2-1b": "h200",
    "mt-nlg-530b": "h100",
    "quickstart": "b200",
}
DIGITS = 5
ALONE = "mesh={data: 1}"
REFERENCE = "attention.implementation=reference"
KEPT_WHOLE = ("mesh={data: 8}", "recompute=none", REFERENCE)
LARGE = (ALONE, "batch.global=8", REFERENCE)
STREAMED = "zero.stage=3 offload.optimizer=host offload.parameters=host"


def config(name: str, *overrides: str) -> Config:
    return Config.load(ROOT / "configs" / f"{name}.yaml", overrides)


@cache
def made(name: str) -> Plan:
    return plan(config(name), GPUS[name])


def rounded(tree: Any) -> Any:
    """Floats to a few digits: the last ones depend on the order of sums."""
    match tree:
        case dict():
            return {key: rounded(value) for key, value in tree.items()}
        case list() | tuple():
            return [rounded(value) for value in tree]
        case float():
            return float(f"{tree:.{DIGITS}g}")
    return tree


@pytest.mark.parametrize("name", CONFIGS)
def test_golden_plan(name: str) -> None:
    """After a change that is meant: UPDATE_GOLDEN=1 pytest tests/trainer/planner/test_plan.py, and read the diff."""
    tree = rounded(as_dict(made(name), tokens=1e12))
    del tree["stages"]  # all like the worst, which is there
    golden = GOLDEN / f"plan_{name}_{GPUS[name]}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    assert tree == json.loads(golden.read_text(encoding="utf-8"))


def test_every_number_has_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(config("gpt2-124m", "offload.optimizer=host", "zero.stage=1"), "h100", 8, 8)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    headings = {" ".join(line): lines[place + 2] for place, line in enumerate(lines[:-2])}
    assert headings["Memory of each GPU"] == headings["Off the GPU, for each GPU"] == ["GiB"]
    assert headings["Time of a step"] == ["seconds", "part"]


def test_the_wire_is_legible_on_a_narrow_terminal() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(_wire(made("quickstart")))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed
    words = printed.split()
    assert {"collective", "reduce_scatter", "pipeline", "tensor", "nvlink", "messages", "seconds"} <= {*words}
    assert all(f"{sent.messages:,}" in words for sent in made("quickstart").wire)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_takes_seconds_and_no_device(name: str) -> None:
    printed, seconds = without_devices("plan", f"configs/{name}.yaml", "--tokens", "3e11", "--json")
    assert seconds < 10
    fields = [field.name for field in dataclasses.fields(Plan)]
    totals = ["memory", "bytes_per_gpu", "host_bytes", "tokens", "days", "gpu_hours"]
    assert list(json.loads(printed)) == [*fields, *totals]


LAYOUTS = (
    ("mesh={data: 4, tensor: 2}", "zero.stage=3"),
    ("mesh={replica: 2, data: 4}", "zero.stage=2", "recompute=full"),
    ("mesh={pipeline: 2, data: 2, tensor: 2}", "zero.stage=1"),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout[0])
def test_what_is_sent_and_held_is_that_of_the_traced_step(layout: tuple[str, ...]) -> None:
    asked = tiny(*layout)
    planned, described = plan(asked), describe(asked).memory
    messages: Counter[Any] = Counter()
    link_bytes: dict[Any, float] = defaultdict(float)
    for transfer in busiest(trace_step(asked)):
        messages[transfer.kind, transfer.axes] += transfer.count
        link_bytes[transfer.kind, transfer.axes] += transfer.link_bytes
    assert {(sent.kind, sent.axes): sent.messages for sent in planned.wire} == messages
    assert {(sent.kind, sent.axes): sent.link_bytes for sent in planned.wire} == link_bytes
    assert planned.memory.master + planned.memory.optimizer == described.optimizer
    assert (planned.memory.weights, planned.memory.gathered) == (described.weights, described.gathered)


WIDE = ("model.heads=16", "model.kv_heads=16")


@pytest.mark.parametrize(
    ("overrides", "gpus_per_node", "links"),
    [
        (("mesh={data: 4, tensor: 2}",), 8, {"data": "nvlink", "tensor": "nvlink"}),
        (("mesh={data: 8, tensor: 2}",), 8, {"data": "network", "tensor": "nvlink"}),
        (("mesh={data: 4, tensor: 2}",), 2, {"data": "network", "tensor": "nvlink"}),
        (("mesh={tensor: 16}", *WIDE), 8, {"tensor": "network"}),
        (("mesh={pipeline: 2, tensor: 4}",), 8, {"pipeline": "nvlink", "tensor": "nvlink"}),
        (("mesh={pipeline: 2, tensor: 4}",), 4, {"pipeline": "network", "tensor": "nvlink"}),
    ],
)
def test_a_link_is_nvlink_inside_a_node_and_the_network_across(
    overrides: tuple[str, ...], gpus_per_node: int, links: dict[str, str]
) -> None:
    planned = plan(tiny(*overrides), gpus_per_node=gpus_per_node)
    assert {sent.axes[0]: sent.link for sent in planned.wire if len(sent.axes) == 1} == links
    assert all(sent.seconds > 0 for sent in planned.wire)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "h1000"}, "no GPU 'h1000'; did you mean h100?"),
        ({"gpus": 3}, "3"),
        ({"gpus": 0}, "gpus=0: use 1 to 1,000,000"),
        ({"gpus": 10**12}, "gpus=1000000000000: use 1 to 1,000,000"),
        ({"gpus_per_node": 0}, "gpus_per_node=0: use 1 or more"),
    ],
)
def test_what_cannot_be_planned_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(tiny("mesh={data: 4, tensor: 2}"), **options)
    assert message in str(error.value)


def test_a_free_axis_takes_what_the_gpus_leave() -> None:
    planned = plan(Config.from_dict(TINY, ["mesh={data: -1, tensor: 2}"]), gpus=16)
    assert (planned.gpus, planned.mesh["data"], planned.assumed) == (16, 8, None)


def test_days_are_steps_and_gpu_hours_are_days() -> None:
    planned = made("bloom-176b")
    steps = 366e9 / planned.tokens_per_step
    assert planned.days(366e9) == pytest.approx(steps * planned.seconds_per_step / 86400)
    assert planned.gpu_hours(366e9) == pytest.approx(planned.days(366e9) * 24 * planned.gpus)


def test_a_checkpoint_takes_as_long_as_the_storage_needs() -> None:
    planned = made("bloom-176b")
    assert planned.checkpoint_seconds(40e9) == pytest.approx(planned.checkpoint_bytes / 40e9)
    result = CliRunner().invoke(app, ["plan", str(ROOT / "configs/gpt2-124m.yaml"), "--storage", "0.5"])
    assert "checkpoint    1.5 GB, saved in 3.0 s at 0.5 GB/s" in result.stdout


def test_the_worst_stage_is_told() -> None:
    planned = made("bloom-176b")
    assert planned.memory == max(planned.stages, key=lambda stage: stage.total)
    assert fullest(planned) == "all 12 stages hold alike: they run one program"
    stages = list(planned.stages)
    stages[3] = dataclasses.replace(stages[3], activations=2 * stages[3].activations)
    uneven = dataclasses.replace(planned, stages=tuple(stages), worst_stage=3)
    assert fullest(uneven) == "stage 3 of 12 is the fullest"


def test_what_is_said_to_help_does_help() -> None:
    asked = config("llama3-8b", *KEPT_WHOLE)
    planned = plan(asked)
    assert not planned.fits
    assert planned.largest_micro_batch is None
    assert "recompute=selective" in planned.helps
    for overrides in planned.helps:
        changed = plan(Config.from_dict(asked.to_dict(), overrides.split()))
        assert changed.fits, overrides
        assert changed.gpus == planned.gpus
        assert changed.seconds_per_step == pytest.approx(planned.helps[overrides])


@pytest.mark.parametrize(
    ("name", "overrides", "help"),
    [
        ("gpt2-124m", [ALONE, "batch.micro=256", REFERENCE], "batch.micro=64"),
        (
            "llama3-8b",
            ["mesh={data: 8}", "zero.stage=0", "batch.global=8", "recompute=full", REFERENCE],
            "zero.stage=2",
        ),
        ("llama3-8b", [*LARGE, "recompute=full"], "mesh.tensor=4"),
        ("llama3-8b", [*LARGE, "recompute=full"], STREAMED),
        ("llama3-8b", [*LARGE, "recompute=none"], f"{STREAMED} recompute=selective"),
        (
            "llama3-8b",
            [*LARGE, "recompute=full", "offload={optimizer: nvme, path: x}"],
            "zero.stage=3 offload.parameters=host",
        ),
    ],
)
def test_help_is_the_mildest_of_its_kind(name: str, overrides: list[str], help: str) -> None:
    assert help in plan(config(name, *overrides)).helps


def test_what_offloads_helps_last_and_where_it_is_needed() -> None:
    on_larger = plan(config("llama3-8b", *LARGE, "recompute=full"), "h200")
    assert list(on_larger.helps)[-1] == "offload.optimizer=host"
    for overrides in plan(config("llama3-8b", *LARGE, "recompute=none")).helps:
        assert overrides == "mesh.tensor=8" or "mesh.tensor=8" not in overrides


def test_a_gpu_s_file_need_not_know_its_host_where_nothing_is_offloaded(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    lines = H100_FILE.read_text().splitlines(keepends=True)
    mine.write_text("".join(line for line in lines if not line.startswith(("host_memory", "nvme"))))
    asked = config("llama3-8b", *LARGE, "recompute=full")
    assert list(plan(asked, str(mine)).helps) == [way for way in plan(asked).helps if "optimizer" not in way]
    with pytest.raises(ConfigError, match="host_memory_bandwidth of GPU h100: missing, and the update of what is off"):
        plan(Config.from_dict(asked.to_dict(), ["offload.optimizer=host"]), str(mine))


def test_the_largest_micro_batch_fits_and_the_next_does_not() -> None:
    largest = plan(config("gpt2-124m", ALONE)).largest_micro_batch
    assert largest is not None
    fits = [plan(config("gpt2-124m", ALONE, f"batch.micro={largest * factor}")).fits for factor in (1, 2)]
    assert fits == [True, False]


def test_the_summary_says_by_how_much_and_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(config("llama3-8b", *KEPT_WHOLE), "h100", None, 8)
    shown = capsys.readouterr().out
    assert "GiB too much" in shown
    assert "recompute=selective" in shown


def test_published_runs_are_predicted_one_object_a_row() -> None:
    result = CliRunner().invoke(app, ["plan", "--published", str(RUNS), "--json"])
    assert result.exit_code == 0, result.output
    predicted = json.loads(result.stdout)
    assert [row["id"] for row in predicted] == [run.id for run in read()]
    assert {tuple(row) for row in predicted} == {
        ("id", "tflops_per_gpu", "seconds_per_step", "gigabytes_per_gpu", "fits")
    }


def test_published_runs_on_another_gpu_are_faster() -> None:
    shown = [
        CliRunner().invoke(app, ["plan", "--published", str(RUNS), *other]).stdout for other in ((), ("--gpu", "b200"))
    ]
    (a100,), (b200,) = ([line.split() for line in text.splitlines() if "bloom-195B" in line] for text in shown)
    assert float(b200[2]) < float(a100[2]) / 2


@pytest.mark.parametrize("args", [[], ["configs/quickstart.yaml", "--published", str(RUNS)]])
def test_a_plan_is_of_a_config_or_of_published_runs(args: list[str]) -> None:
    result = CliRunner().invoke(app, ["plan", *args])
    assert result.exit_code == 2
    assert "--published FILE.csv" in result.stderr


def test_a_trainer_plans_itself_without_devices() -> None:
    asked = config("llama3-8b")
    trainer = Trainer(asked)
    assert trainer.plan(gpu="h200", gpus=256) == plan(asked, "h200", 256)
    assert trainer.plan(gpu="h200", gpus=256).mesh["replica"] == 32
    assert "program" not in vars(trainer)
