"""GPU descriptions: the shipped ones are whole and agree with what else is known; a user's own is read or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trainer.planner
from trainer.chips import peak_flops
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.planner.compiled import compile_step
from trainer.planner.gpu import ALIASES, KINDS, described, load
from trainer.planner.plan import plan

H100 = Path(trainer.planner.__file__).parent / "gpus/h100.yaml"
XLA_DIES_WITHOUT = ("threads_per_warp", "block_dim_limit_x", "shared_memory_per_block_optin", "cuda_compute_capability")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_reached_is_below_the_data_sheet(kind: str) -> None:
    gpu = load(kind)
    assert gpu.name == kind
    assert 0.5 * gpu.peak_flops < gpu.flops(2) < gpu.peak_flops
    assert gpu.link.bandwidth < gpu.nvlink_bandwidth
    assert gpu.flops(4) <= 0.51 * gpu.flops(2)
    assert gpu.memory_bytes >= gpu.limit_bytes > gpu.pool_bytes > 0.9 * (gpu.memory_bytes - gpu.reserved_bytes)
    assert described(gpu.device_kind) == gpu
    assert peak_flops(gpu.device_kind, "float16") == gpu.peak_flops


WITHOUT_TARGET = ("rtx-4090", "rtx-5090", "rtx-6000-ada", "l4", "l40s", "a10g", "v100-32gb")


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*WITHOUT_TARGET}))
def test_the_target_names_the_same_gpu(kind: str) -> None:
    gpu = load(kind)
    fields = dict(re.findall(r"(\w+): ([\w.]+)", gpu.xla_target))
    described = re.search(r'device_description_str: "(.+)"', gpu.xla_target)
    assert described is not None
    assert peak_flops(described[1], "bfloat16") == gpu.peak_flops
    assert int(fields["core_count"]) == gpu.multiprocessors
    assert float(fields["memory_bandwidth"]) == pytest.approx(gpu.memory_bandwidth, rel=0.05)
    assert gpu.memory_bytes <= float(fields["device_memory_size"]) * 1.001
    assert [name for name in XLA_DIES_WITHOUT if name not in gpu.xla_target] == []


def test_names_are_read_in_any_case_and_the_nearest_is_told() -> None:
    assert load("H100") == load("h100")
    with pytest.raises(ConfigError, match="no GPU 'h10'; did you mean h100"):
        load("h10")
    with pytest.raises(ConfigError, match=re.escape(f"no GPU 'mi300x' (GPUs: {', '.join(KINDS)}, or a YAML file")):
        load("mi300x")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(H100.read_text().replace("name: h100", "name: mine"))
    assert load(str(mine)).name == "mine"


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "peak_flops",
            "peek_flops",
            r"peak_flops: missing \(is it what peek_flops should be\?\); a GPU's file needs name, peak_flops, ",
        ),
        ("bandwidth: 373e9, ", "", "nvlink.bandwidth: missing"),
        ("multiprocessors: 132", "multiprocessors: many", r"mine.yaml:\d+: multiprocessors: expected a whole number"),
        ("attention: 0.6", "attention: 6", r"efficiency.attention: expected a number \(above 0 and at most 1\), got 6"),
        ("name: h100", "name: mine\ncolour: green", "colour: unknown key"),
    ],
)
def test_a_wrong_file_is_refused_by_key(tmp_path: Path, written: str, instead: str, message: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(H100.read_text().replace(written, instead))
    with pytest.raises(ConfigError, match=message):
        load(str(mine))


PAGE = Path(__file__).parents[3] / "docs/planning.md"
MINE = PAGE.read_text(encoding="utf-8").partition("A file of your own needs the first six")[2].split("```")[1]
"""As the docs have it."""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    return file


def test_a_file_needs_only_what_every_plan_is_made_of(mine: Path) -> None:
    config = Config.from_dict({"batch": {"global": 64}, "mesh": {"data": -1}})
    made = plan(config, str(mine), 16)
    assert made.fits
    assert made.memory.overhead == load("h100").reserved_bytes
    for line in MINE.split("\n")[1:-1]:
        mine.write_text(MINE.replace(f"{line}\n", ""))
        with pytest.raises(ConfigError, match=rf"mine.yaml: {line.partition(':')[0]}: missing"):
            load(str(mine))


def test_what_needs_more_of_a_file_says_what(mine: Path) -> None:
    with pytest.raises(ConfigError, match=r"^GPU mine cannot be compiled for .* no xla_target.* one of a100, a6000,"):
        compile_step(Config.from_dict({"mesh": {"data": 8}}), load(str(mine)))
    with pytest.raises(ConfigError, match=r"^host_bandwidth of GPU mine: missing"):
        plan(Config.from_dict({"offload": {"optimizer": "host"}, "mesh": {"data": 2}}), str(mine))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("nvidia_l4", "l4"),
        ("Tesla V100", "v100-32gb"),
    ],
)
def test_a_name_is_known_however_it_is_written(written: str, name: str) -> None:
    assert load(written).name == name


def test_other_names_are_of_gpus_that_there_are() -> None:
    assert {load(alias).name for alias in ALIASES} == {*ALIASES.values()} <= {*KINDS}


def test_a_gpu_without_bfloat16_is_not_planned_with_it() -> None:
    tree = {"precision": {"compute": "bfloat16"}, "mesh": {"data": 8}}
    with pytest.raises(ConfigError, match=r"GPU v100-32gb does not multiply bfloat16; use precision.compute=float16"):
        plan(Config.from_dict(tree), "v100")
    assert plan(Config.from_dict(tree, {"precision.compute": "float16"}), "v100").fits


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(str(tmp_path / "absent.yaml"))
