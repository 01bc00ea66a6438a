"""`attention.implementation: auto` takes what is right and fastest where it runs; here with stand-ins for kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import trainer.trainer
from pallas_kernels import reference
from pallas_kernels.attention import IMPLEMENTATIONS, Name, able, preferred, take
from tests.trainer import small
from trainer import Config, Trainer, attention_check
from trainer.attention import wanted
from trainer.attention_check import Shape, Tried, Verdict, check_here, decide, shape_of, try_all

SHAPE = Shape(
    positions=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    dtype="bfloat16",
    documents=True,
    alibi=True,
    soft_cap=30.0,
    window=20,
)
OTHERWISE = "the run was last trained with pallas, and is rounded otherwise from here on"
TIMES = "(cudnn 1 ms, reference 3 ms); pallas is left out: slow"


def raising(*_: Any, **__: Any) -> jax.Array:
    raise RuntimeError("Shared memory is not enough\nand more")


def without_documents(*args: Any, segments: Any = None, **options: Any) -> jax.Array:
    return reference.attention(*args, **options)


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return x


doubled.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


def wrong_gradients(q: jax.Array, *args: Any, **options: Any) -> jax.Array:
    return reference.attention(doubled(q), *args, **options)


def without_window(*args: Any, window: Any = None, **options: Any) -> jax.Array:
    return reference.attention(*args, **options)


def not_a_number(*args: Any, **options: Any) -> jax.Array:
    return reference.attention(*args, **options) * jnp.nan


def seconds_of(*seconds: float) -> Callable[[Callable[[], Any]], float]:
    """A clock that says these, one a call."""
    left = iter(seconds)
    return lambda _: next(left)


def test_what_is_right_is_timed_and_what_is_not_says_why() -> None:
    tried = try_all(
        {"pallas": without_documents, "cudnn": raising, "reference": reference.attention}, SHAPE, seconds_of(0.5)
    )
    assert [one.name for one in tried] == ["pallas", "cudnn", "reference"]
    assert "wrong by" in tried[0].problem
    assert tried[1].problem == "RuntimeError: Shared memory is not enough"
    assert tried[2] == Tried("reference", 0.5)


@pytest.mark.parametrize("attend", [wrong_gradients, not_a_number, without_documents, without_window])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_wrong_is_noticed(attend: Any, dtype: str) -> None:
    assert try_all({"pallas": attend}, SHAPE._replace(dtype=dtype), seconds_of())[0].problem


def test_the_kernel_itself_is_right() -> None:
    """Interpreted, on the arrays that a GPU would be tried with."""
    asked = wanted(Config.from_dict({}), None)
    tried = try_all({"pallas": IMPLEMENTATIONS["pallas"].make(asked)}, SHAPE, seconds_of(1.0))
    assert tried == [Tried("pallas", 1.0)]


def test_what_cannot_be_made_is_left_out() -> None:
    tried = try_all(
        {"cudnn": ValueError("it is not installed"), "reference": reference.attention}, SHAPE, seconds_of(1)
    )
    assert tried[0].problem == "ValueError: it is not installed"


@pytest.mark.parametrize(
    ("kept", "name", "why"),
    [
        (None, "cudnn", f"the fastest that is right on this GPU {TIMES}"),
        ("reference", "reference", f"as the run was last trained {TIMES}"),
        ("pallas", "cudnn", f"the fastest that is right on this GPU; {OTHERWISE} {TIMES}"),
    ],
)
def test_the_fastest_is_taken_or_what_the_run_began_with(kept: Name | None, name: Name, why: str) -> None:
    tried = [Tried("pallas", 0.0, "slow"), Tried("reference", 3e-3), Tried("cudnn", 1e-3)]
    assert decide(tried, kept) == Verdict(name, why)


def test_where_the_reference_fails_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "attention", raising)
    tried = try_all({"pallas": without_documents, "reference": raising}, SHAPE, seconds_of())
    assert decide(tried, None).name == "reference"
    assert "Shared memory is not enough" in decide(tried, None).why


def test_where_nothing_can_be_tried_the_reference_is_taken() -> None:
    assert decide([Tried("reference", 0.0, "out of memory")], None).name == "reference"


def test_what_is_tried_has_the_models_heads_and_fits() -> None:
    shape = shape_of(Config.load("configs/llama3-8b.yaml"))
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.positions) == (16, 4, 128, 2048)
    assert shape_of(Config.from_dict({"model": {"heads": 3, "hidden": 24}})).heads == 3


@pytest.mark.parametrize(
    ("gpu", "changes", "name"),
    [
        ("", {}, "pallas"),
        (None, {}, "reference"),
        ("", {"attention": {"over": "sequence"}, "precision": {"compute": "bfloat16"}}, "pallas"),
        ("", {"model": {"hidden": 2048, "heads": 4}}, "reference"),
    ],
)
def test_plans_for_gpus_assume_the_fastest_that_can(gpu: str | None, changes: dict[str, Any], name: str) -> None:
    asked = wanted(Config.from_dict(changes), gpu)
    assert preferred(asked) == name
    assert name in able(asked)


class OnGpu:
    """Of one GPU that is there, as far as the check looks at it: programs run on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.cache, self.said, self.tried = cache, [], 0
        client = SimpleNamespace(platform_version="stand-in 1")
        self.device: Any = SimpleNamespace(platform="gpu", device_kind="stand-in", process_index=0, client=client)
        monkeypatch.setattr(jax, "default_device", lambda _: jax.disable_jit(False))
        monkeypatch.setattr(attention_check, "try_all", self._try_all)

        self.problem = ""
        """What is wrong with the first that is tried."""

    def _try_all(self, candidates: Any, shape: Shape) -> list[Tried]:
        self.tried += 1
        first, *others = [Tried(name, 1.0 + place) for place, name in enumerate(candidates)]
        return [first._replace(problem=self.problem), *others]

    def check(self, config: Config, kept: Name | None = None) -> Any:
        return check_here(config, [self.device], lambda: kept, self.said.append, self.cache)


def test_a_gpu_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = OnGpu(monkeypatch, tmp_path / "cache")
    config = Config.from_dict({})
    first = gpu.check(config)
    assert first.name == "pallas"
    assert "the fastest that is right" in first.why
    assert gpu.check(config).why == first.why
    assert (gpu.tried, len(gpu.said)) == (1, 1)
    assert gpu.check(Config.from_dict({"precision": {"compute": "bfloat16"}})).name == "pallas"
    assert gpu.check(config, "reference").name == "reference"
    assert "where plans assume pallas" in gpu.said[-1]
    assert gpu.tried == 2


def test_what_has_failed_once_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = OnGpu(monkeypatch, tmp_path)
    gpu.problem = "out of memory"
    assert gpu.check(Config.from_dict({})).name == "reference"
    gpu.problem = ""
    assert gpu.check(Config.from_dict({})).name == "pallas"


def test_other_processes_take_what_the_first_has_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = OnGpu(monkeypatch, tmp_path)
    monkeypatch.setattr(attention_check, "is_first", lambda: False)
    monkeypatch.setattr(attention_check, "of_first", lambda about, told: '["reference", "as process 0 has found"]')
    found = gpu.check(Config.from_dict({}))
    assert (found.name, gpu.tried) == ("reference", 0)
    assert "as process 0 has found" in found.why


@pytest.mark.parametrize("damage", ["", "[]", '["nothing", "known"]', "{"])
def test_a_damaged_note_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str) -> None:
    gpu = OnGpu(monkeypatch, tmp_path)
    gpu.check(Config.from_dict({}))
    (file,) = tmp_path.iterdir()
    file.write_text(damage)
    assert gpu.check(Config.from_dict({})).name == "pallas"
    assert gpu.tried == 2
    assert json.loads(file.read_text())[0][0] == "pallas"


def test_only_what_is_left_open_on_gpus_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = OnGpu(monkeypatch, tmp_path)
    assert gpu.check(Config.from_dict({"attention": {"implementation": "pallas"}})) is None
    assert check_here(Config.from_dict({}), jax.devices(), lambda: None, gpu.said.append, tmp_path) is None
    assert gpu.tried == 0


def test_what_was_found_is_what_runs_and_is_kept_with_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Name | None] = []

    def check(config: Config, devices: Any, kept: Any, say: Any) -> Any:
        asked.append(kept())
        return take("pallas", wanted(config, None), "as found")

    monkeypatch.setattr(trainer.trainer, "check_here", check)
    config = Config.from_dict(small.tree(small.write_text(tmp_path / "text"), tmp_path / "run"))
    first = Trainer(config)
    first.open_folder()
    assert (first.program.attention.name, Trainer(config).program.attention.name) == ("pallas", "pallas")
    assert asked == [None, "pallas"]


def test_what_was_not_tried_is_no_choice_to_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that begins on CPUs, with their reference, takes what is fastest when it goes on on GPUs."""
    config = Config.from_dict(small.tree(small.write_text(tmp_path / "text"), tmp_path / "run"))
    Trainer(config).open_folder()
    asked: list[Name | None] = []
    monkeypatch.setattr(trainer.trainer, "check_here", lambda config, devices, kept, say: asked.append(kept()))
    assert Trainer(config).program.attention.name == "reference"
    assert asked == [None]
