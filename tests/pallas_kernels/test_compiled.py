"""Kernels that are compiled for GPUs that are not there: they need no more registers and memory than they did."""

from __future__ import annotations

import json

import pytest

from benchmarks.kernel_compile import ALL, golden_path, jobs, key, wrong
from trainer.bench.probe import Report, probe
from trainer.errors import ConfigError
from trainer.planner.compiled import check_installed

FEW = [f"a100 d_queries 64 bfloat16 {ALL}", f"h100 forward 128 bfloat16 {ALL}", f"b200 d_keys 128 bfloat16 {ALL}"]
REGISTERS = 16
"""How far an assembler's patch release may be off."""


def _missing() -> str:
    try:
        check_installed()
    except ConfigError as error:
        return str(error)
    return "" if golden_path().exists() else f"no {golden_path().name}"


@pytest.mark.skipif(bool(_missing()), reason=_missing())
@pytest.mark.parametrize("name", FEW)
def test_a_kernel_keeps_to_its_registers_and_guards_its_writes(name: str) -> None:
    job = next(job for job in jobs() if key(job) == name)
    expected = json.loads(golden_path().read_text())[name]
    report = probe(job)
    assert not wrong(job, report)
    assert tuple(expected["tile"]) == job.tile
    assert abs(report.registers - expected["registers"]) <= REGISTERS
    assert report.shared_memory == expected["shared_memory"]


@pytest.mark.skipif(not golden_path().exists(), reason=f"no {golden_path().name}")
def test_the_golden_file_is_of_the_tiles_that_are_used() -> None:
    golden = json.loads(golden_path().read_text())
    assert {name: tuple(value["tile"]) for name, value in golden.items()} == {key(job): job.tile for job in jobs()}


def test_a_kernel_that_spills_is_called_wrong() -> None:
    job = next(jobs())
    fine = Report(registers=200, threads=256, tensor_cores={"wgmma": 8}, stores=4)
    assert not wrong(job, fine)
    assert wrong(job, Report(**{**vars(fine), "spilled": 4})) == ["4 bytes spilled"]
    assert wrong(job, Report(**{**vars(fine), "tensor_cores": {}})) == ["no tensor cores"]
    assert wrong(job, Report(**{**vars(fine), "bare_stores": 1})) == ["1 unguarded writes"]
    assert wrong(job, Report(error="gone")) == ["gone"]
