"""The check of a GPU runs to its end on CPU, notices what is wrong, and survives what fails."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import gpu_check, gpu_copies, gpu_correctness, gpu_cudnn, gpu_speed, gpu_training
from benchmarks.gpu_check import NO_GPU, NOTICE, PARTS
from benchmarks.gpu_training import Trained
from pallas_kernels import reference
from pallas_kernels.attention import IMPLEMENTATIONS, Choice
from pallas_kernels.flash import flash_attention
from trainer.bench import speed
from trainer.bench.speed import OUT_OF_MEMORY, Speed


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where they go; compiling is quick meanwhile."""
    monkeypatch.setattr(gpu_check, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu_correctness, "COMPILERS", 1)
    jax.config.update("jax_disable_most_optimizations", True)
    yield tmp_path
    jax.config.update("jax_disable_most_optimizations", False)


LONG = ("correctness", "training")
"""Of which other tests do the work, in shorter ways."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] if name in LONG else []) for name in PARTS]
)
def test_every_part_is_well_on_cpu(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (speed, gpu_training):  # others are compiled elsewhere often enough
        monkeypatch.setattr(module, "able", lambda _: ["pallas"])
    assert gpu_check.run(name, dry=True) == 0
    assert "WRONG" not in capsys.readouterr().out


def test_the_parts_of_a_dry_run_are_processes_and_leave_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    """One that no process knows fails, and the next one runs."""
    monkeypatch.setattr(gpu_check, "PARTS", {"unknown": PARTS["speed"], "machine": PARTS["machine"]})
    assert gpu_check.main(dry=True) == 1
    text = capsys.readouterr().out
    assert text.count(NOTICE) == 2
    assert "invalid choice: 'unknown'" in text
    assert text.index("WRONG: exit code 2") < text.index(" x cpu") < text.index("fine,")
    assert text.splitlines()[-2].startswith("WRONG: unknown;")
    assert not list(results.iterdir())


def test_without_a_gpu_nothing_is_tried(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    assert gpu_check.main(dry=False) == 1
    text = capsys.readouterr().out
    assert f"WRONG: {NO_GPU}" in text
    assert PARTS["correctness"].title not in text
    assert not list(results.iterdir())


def test_what_is_found_on_a_gpu_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    monkeypatch.setattr(gpu_check, "PARTS", {"copies": PARTS["copies"]})  # which finds none, and says so
    assert gpu_check.main(dry=False) == 1
    (file,) = results.iterdir()
    assert file.read_text() == capsys.readouterr().out


def test_a_part_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    part = gpu_check.Part("slow", "gpu_speed", 0)
    monkeypatch.setattr(gpu_check, "PARTS", {"speed": part})
    assert gpu_check.main(dry=True) == 1
    assert "WRONG: not done after 0 s" in capsys.readouterr().out


class Broken:
    """Flash attention, with an error in one of its results, that may grow from run to run."""

    def __init__(self, error: float, grows: bool = False) -> None:
        self.error, self.grows = error, grows
        self.runs = 0.0

    def __call__(self, *args: Any, **options: Any) -> Any:
        out, lse = flash_attention(*args, **options)

        def more() -> Any:
            self.runs += self.grows
            return jax.numpy.float32(self.error + self.runs * 1e-6)

        error = jax.pure_callback(more, jax.ShapeDtypeStruct((), "float32"))
        return out, lse + error


@pytest.mark.parametrize(
    ("broken", "said"),
    [(Broken(1e-3), "beyond what is allowed: lse"), (Broken(0, grows=True), "not the same bits twice")],
)
def test_an_attention_that_is_off_is_noticed(broken: Broken, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_correctness, "flash_attention", broken)
    monkeypatch.setattr(gpu_correctness, "programs", lambda number, rng: [gpu_correctness.Case(queries=40, keys=33)])
    assert any(said in line for line in gpu_correctness.check(jax.devices()[0], dry=True))


def test_a_case_that_does_not_compile_is_told_and_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any, soft_cap: float | None, **options: Any) -> Any:
        if soft_cap:
            raise RuntimeError("ptxas died")
        return flash_attention(*args, soft_cap=soft_cap, **options)

    case = gpu_correctness.Case(queries=40, keys=33)
    cases = [gpu_correctness.Case(soft_cap=1.0), case]
    monkeypatch.setattr(gpu_correctness, "flash_attention", fails)
    monkeypatch.setattr(gpu_correctness, "programs", lambda number, rng: cases)
    (wrong,) = gpu_correctness.check(jax.devices()[0], dry=True)
    assert wrong.endswith("RuntimeError: ptxas died")
    assert "2 of 2" in capsys.readouterr().out


def test_a_cudnn_that_is_off_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In its place stands an attention that ends too far away, or does not run at all."""

    def far(*arrays: jax.Array, **options: Any) -> jax.Array:
        return reference.attention(*arrays, **options) * 1.03

    def fails(*_: Any, **__: Any) -> jax.Array:
        raise RuntimeError("cuDNN is not detected.")

    for attend, said in ((far, "out is "), (fails, "RuntimeError: cuDNN is not detected.")):
        monkeypatch.setattr(gpu_cudnn, "choose", lambda *_, attend=attend: Choice("cudnn", "", attend))
        assert any(said in line for line in gpu_cudnn.check(jax.devices()[0], dry=True))


def test_memory_may_not_be_enough_for_the_reference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (shape,) = gpu_speed.TINY
    speeds = [Speed(name, shape, problem=OUT_OF_MEMORY) for name in IMPLEMENTATIONS]
    monkeypatch.setattr(gpu_speed, "attention_speeds", lambda *_: speeds)
    wrong = gpu_speed.check(jax.devices()[0], dry=True)
    assert [line.split(",")[0] for line in wrong] == ["pallas", "cudnn"]


def test_losses_that_differ_are_wrong() -> None:
    same = [Trained("a", 2.5, 1), Trained("b", 2.505, 1)]
    assert not list(gpu_training._apart(same))
    assert list(gpu_training._apart([*same, Trained("c", 2.52, 1)]))
    assert list(gpu_training._apart([*same, Trained("c", float("nan"), 1)]))


def test_the_step_that_a_gpu_is_asked_fits_a_node_of_one() -> None:
    config = gpu_training.Config.load(gpu_training.CONFIG, gpu_training.ONE_GPU)
    assert config.resolve(1).batch.accumulation(1) == 2


def test_a_copy_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("no such memory")

    copies = [("a", "b", lambda: 1, fail), ("c", "d", lambda: 1, lambda one: one)]
    monkeypatch.setattr(gpu_copies, "_copies", lambda *_: copies)
    assert gpu_copies.check(jax.devices()[0], dry=True) == ["a to b: ValueError: no such memory"]
    assert "c" in capsys.readouterr().out


def test_every_part_is_there() -> None:
    assert all(callable(import_module(f"benchmarks.{part.module}").check) for part in PARTS.values())
