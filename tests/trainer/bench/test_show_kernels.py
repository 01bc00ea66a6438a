"""Kernels for a GPU that is not there: what they take is told, and what does not compile."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from trainer.bench import absent, show_kernels
from trainer.bench.absent import compiled_kernels, kernel_work
from trainer.bench.probe import Job, Report
from trainer.bench.shapes import SHAPES, Shape, Work
from trainer.bench.speed import Speed
from trainer.errors import ConfigError
from trainer.planner.compiled import check_installed
from trainer.planner.gpu import load

ROOT = Path(__file__).parents[3]


def _missing() -> str:
    try:
        check_installed()
    except ConfigError as error:
        return str(error)
    return ""


def test_kernels_say_what_they_compute_and_move() -> None:
    shape = Shape(batch=2, sequence=48, heads=4, head_dim=32)
    seen = 2 * 4 * 48 * 49 // 2
    array, per_query = 2 * 2 * 48 * 4 * 32, 4 * 2 * 48 * 4
    assert kernel_work(shape) == {
        "forward": Work(2 * 2 * seen * 32, 4 * array + per_query),
        "d_queries": Work(3 * 2 * seen * 32, 5 * array + 2 * per_query),
        "d_keys": Work(4 * 2 * seen * 32, 6 * array + 2 * per_query),
    }


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Stands in for the compilers: d_keys of head dim 128 is too much for them."""
    jobs: list[Job] = []

    def probe(job: Job) -> Report:
        jobs.append(job)
        if (job.kernel, job.head_dim) == ("d_keys", 128):
            return Report(error="the compiler ended with signal 6")
        return Report(registers=128, spilled=24, shared_memory=49152, threads=256, tensor_cores={"wgmma": 16})

    monkeypatch.setattr(absent, "probe", probe)
    monkeypatch.setattr(show_kernels, "check_installed", lambda asked_by: None)
    return jobs


def test_all_kernels_and_shapes_are_told(compiler: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert not show_kernels.show_kernels("H100")
    text, progress = capsys.readouterr()
    rows = [line.split() for line in text.splitlines()]
    assert rows[4][:9] == ["forward", "64", "128", "x", "64,", "8", "warps", "16", "wgmma"]
    assert rows[4][9:] == ["128", "24", "49,152", "256", "2", "25.0%"]
    assert "the compiler ended with signal 6" in text
    assert sum(row[:1] == ["d_queries"] for row in rows) == 2 + len(SHAPES)
    assert len(progress.splitlines()) == len(compiler) == 6
    assert {(job.gpu, job.features, job.lengths) for job in compiler} == {("h100", "causal", (8192, 8192))}


def test_a_gpu_of_the_users_own_is_found_from_everywhere(
    compiler: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text((ROOT / "trainer/planner/gpus/a100.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    show_kernels.show_kernels("mine.yaml")
    assert {job.gpu for job in compiler} == {str(tmp_path / "mine.yaml")}


@pytest.mark.parametrize(("problem", "fine"), [("", True), ("out of memory", True), ("JaxRuntimeError: died", False)])
def test_a_gpu_that_is_there_is_measured(
    problem: str, fine: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speed = Speed("reference", SHAPES[0], 0.25, 0.5, problem)
    monkeypatch.setattr(show_kernels, "_gpu", lambda: jax.devices()[0])
    monkeypatch.setattr(show_kernels, "attention_speeds", lambda *_, **__: [speed])
    assert show_kernels.show_kernels(None) == fine
    text = capsys.readouterr().out
    assert "cpu, jax" in text
    assert "its roofline is not known" in text
    assert (problem or "250.000") in text


def test_what_compiling_takes_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.planner.compiled._version", lambda package: None)
    with pytest.raises(
        ConfigError, match=r"^without a GPU of its kind, bench kernels needs jax-cuda13-plugin, .*: pip install"
    ):
        show_kernels.show_kernels(None)


@pytest.mark.skipif(bool(_missing()), reason=_missing())
def test_a_kernel_compiles_in_a_process_of_its_own() -> None:
    _, report = next(compiled_kernels("h100", load("h100"), [64], 1024, lambda _: None))
    assert not report.error
    assert report.tensor_cores["wgmma"] > 0
    assert 0 < report.registers <= 255
    assert report.shared_memory > 0
    assert report.threads == 256
