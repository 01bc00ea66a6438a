"""GPU descriptions: the shipped ones are whole and agree with what else is known; a user's own is read or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trainer.planner
from trainer.chips import peak_flops
from trainer.errors import ConfigError
from trainer.planner.gpu import KINDS, load

H100 = Path(trainer.planner.__file__).parent / "gpus/h100.yaml"
XLA_DIES_WITHOUT = ("threads_per_warp", "block_dim_limit_x", "shared_memory_per_block_optin", "cuda_compute_capability")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_reached_is_below_the_data_sheet(kind: str) -> None:
    gpu = load(kind)
    assert gpu.name == kind
    assert 0.5 * gpu.peak_flops < gpu.flops(2) < gpu.matmul_flops < gpu.peak_flops
    assert gpu.nvlink.bandwidth < gpu.nvlink_bandwidth
    assert gpu.flops(4) == gpu.flops(2) / 2


@pytest.mark.parametrize("kind", KINDS)
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
    with pytest.raises(ConfigError, match=re.escape("(GPUs: a100, b200, h100, h200, or a YAML file")):
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
            r"peak_flops: missing \(is it what peek_flops should be\?\); begin with a copy of",
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


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(str(tmp_path / "absent.yaml"))
