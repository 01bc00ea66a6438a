"""Kernels that are compiled for GPUs that are not there: they need no more registers and memory than they did."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import kernel_compile, kernel_presets
from benchmarks.kernel_compile import ALL, FOLDER, golden, golden_path, having, jobs, wrong
from models.presets import PRESETS
from pallas_kernels.flash import flash_attention
from pallas_kernels.flash.scores import padded
from trainer.bench.probe import Report, probe
from trainer.errors import ConfigError
from trainer.planner.compiled import absent_gpus, check_installed
from trainer.planner.gpu import load

FEW = [f"a100 d_queries 64 bfloat16 {ALL}", f"h100 forward 128 bfloat16 {ALL}", f"b200 d_keys 128 bfloat16 {ALL}"]
REGISTERS = 16
"""How far an assembler's patch release may be off."""
GOLDEN = sorted(FOLDER.glob("kernels_jax*.json"))
MATMULS = {"forward": 2, "d_queries": 3, "d_keys": 4}
MMA_SYNC = 16 * 8 * 16
"""Products of one instruction of one warp."""


def _missing() -> str:
    try:
        check_installed()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.skipif(bool(_missing()), reason=_missing())
@pytest.mark.parametrize("name", FEW)
def test_a_kernel_keeps_to_its_registers_and_guards_its_writes(name: str) -> None:
    job, expected = jobs()[name], golden()[name]
    report = probe(job)
    assert not wrong(job, report)
    assert abs(report.registers - expected["registers"]) <= REGISTERS
    assert report.shared_memory == expected["shared_memory"]
    assert report.tensor_cores == expected["tensor_cores"]


@pytest.mark.skipif(bool(_missing()), reason=_missing())
def test_a_kernel_is_fine_at_the_size_of_a_preset() -> None:
    job = kernel_presets.jobs()["b200 d_queries mt-nlg-530b"]
    assert not wrong(job, probe(job))


def test_every_preset_is_compiled_with_the_heads_and_features_that_it_has() -> None:
    found = {
        name.split(" ", 2)[2]: job for name, job in kernel_presets.jobs().items() if name.startswith("b200 d_keys")
    }
    assert sorted(name for names in found for name in names.split(", ")) == sorted(PRESETS)
    bloom, large = found["bloom-176b"], found["llama3-405b"]
    assert (bloom.head_dim, bloom.heads, bloom.kv_heads, bloom.features) == (128, 112, 112, "causal segments alibi")
    assert (large.heads, large.kv_heads, large.lengths) == (128, 8, (131071, 131071))
    assert found["gpt2, gpt2-medium, gpt2-large, gpt2-xl"].heads == 25


def test_kernels_are_found_by_words_of_their_names() -> None:
    (name,) = having(["gpt2", "h100", "d_keys"], kernel_presets.jobs())
    assert name == "h100 d_keys gpt2, gpt2-medium, gpt2-large, gpt2-xl"
    with pytest.raises(
        SystemExit, match="error: no kernel has all of these in its name: h10; one is 'a100 forward 128"
    ):
        having(["h10"], jobs())


@pytest.mark.skipif(bool(_missing()), reason=_missing())
def test_a_route_that_will_go_warns_nobody_who_trains() -> None:
    """pytest takes warnings for errors."""
    mesh = jax.sharding.Mesh(np.array(absent_gpus(load("h100"), 1)), ("x",))
    array = jax.ShapeDtypeStruct((1, 32, 1, 64), "bfloat16")
    with jax.set_mesh(mesh), jax.default_device(mesh.devices.flat[0]):
        assert "flash_forward" in jax.jit(flash_attention).lower(array, array, array).as_text()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_numbers_are_of_the_tiles_that_are_used(path: Path) -> None:
    tiles = {name: tuple(value["tile"]) for name, value in json.loads(path.read_text()).items()}
    assert tiles == {name: job.tile for name, job in jobs().items()}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_warps_make_no_score_twice_on_gpus_of_data_centres(path: Path) -> None:
    """The loops with masks and without have each product of a tile once."""
    golden, named, looked_at = json.loads(path.read_text()), jobs(), 0
    for name in golden:
        job, instructions = named[name], golden[name]["tensor_cores"].get("mma.sync")
        if instructions is not None and job.gpu in kernel_presets.GPUS:
            products = MATMULS[job.kernel] * job.tile.queries * job.tile.keys * padded(job.head_dim)
            assert instructions * job.tile.warps * MMA_SYNC == 2 * products, name
            looked_at += 1
    assert looked_at


def test_golden_numbers_are_those_of_the_minor_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version__", "0.12.7")
    assert golden_path().name == "kernels_jax0.12.json"
    monkeypatch.setattr(jax, "__version__", "0.999.1")
    with pytest.raises(ConfigError, match=r"for jax 0\.999\.1: write .*0\.999\.json with `python -m benchmarks\."):
        golden()


def test_golden_numbers_are_written_where_no_kernel_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = Report(registers=200, threads=256, tensor_cores={"wgmma": 8}, stores=4)
    monkeypatch.setattr(kernel_compile, "FOLDER", tmp_path)
    monkeypatch.setattr(kernel_compile, "version", lambda package: "13.5")
    monkeypatch.setattr(kernel_compile, "probe", lambda job: report)
    assert kernel_compile.main(["--golden", "h100"]) == 0
    report = Report(**{**vars(report), "registers": 190})
    assert kernel_compile.main(["--golden", "d_keys", "h100", "80"]) == 0
    assert {name: numbers["registers"] for name, numbers in golden().items()} == {
        name: 190 if name.startswith("h100 d_keys 80") else 200 for name in jobs() if name.startswith("h100")
    }
    report = Report(**{**vars(report), "registers": 180, "spilled": 4})
    assert kernel_compile.main(["--golden", "d_keys", "h100", "80"]) == 1
    assert 180 not in {numbers["registers"] for numbers in golden().values()}


def test_a_kernel_that_spills_is_called_wrong() -> None:
    job = next(iter(jobs().values()))
    fine = Report(registers=200, threads=256, tensor_cores={"wgmma": 8}, stores=4)
    assert not wrong(job, fine)
    assert wrong(job, Report(**{**vars(fine), "spilled": 4})) == ["4 bytes spilled"]
    assert wrong(job, Report(**{**vars(fine), "tensor_cores": {}})) == ["no tensor cores"]
    assert wrong(job, Report(**{**vars(fine), "stores": 0})) == ["no writes"]
    assert wrong(job, Report(**{**vars(fine), "bare_stores": 1})) == ["1 unguarded writes"]
    assert wrong(job, Report(error="gone")) == ["gone"]
