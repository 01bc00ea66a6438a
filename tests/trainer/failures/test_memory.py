"""Memory that is not enough ends a run with one message, and with an exit code that no restart follows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
import yaml
from typer.testing import CliRunner

from tests.trainer import small
from trainer import Config, Trainer
from trainer.cli import app
from trainer.commands.exit_codes import PERMANENT
from trainer.config_errors import all_keys
from trainer.config_source import dotted
from trainer.errors import PermanentError
from trainer.failures import memory
from trainer.failures.memory import asked_bytes, is_out_of_memory, memory_told
from trainer.keeper import OnDevices
from trainer.lines import read_jsonl
from trainer.planner import Arrangement, estimate, load

SAID = (
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.\n\nAllocation stats:\n  a long list"
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    return Config.from_dict({**tree, "batch": {"global": 64, "sequence": 16}}, {"train.steps": 4})


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices without room for a step."""

    def step(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError(SAID)

    monkeypatch.setattr(OnDevices, "step", step)


def test_a_step_without_room_is_one_message(config: Config, tmp_path: Path, full: None) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    result = CliRunner().invoke(app, ["train", str(file)])
    assert result.exit_code == PERMANENT
    assert "Traceback" not in result.output
    message = result.stderr.strip()
    assert message.startswith("error: out of memory on cpu: 3.0 GiB more were asked for, and of this machine's ")
    assert "; nothing is saved yet. As it is, it would run out again. " in message
    *_, end = read_jsonl(tmp_path / "run/events.jsonl")
    assert f"error: {end['reason']}" == message
    known = {dotted(key) for key in all_keys(Config)}
    ways = message.partition("the fastest first: ")[2].split("; or ")
    assert 1 <= len(ways) <= 3
    for way in ways:
        assert {override.partition("=")[0] for override in way.split()} <= known | {"recompute"}
        assert "offload" not in way  # to the memory that is full
        assert Config.from_dict(config.to_dict(), way.split()).resolve(8).mesh.num_devices == 8


def test_who_goes_step_by_step_is_told_too(config: Config, full: None) -> None:
    with pytest.raises(PermanentError, match=r"^out of memory on cpu"):
        next(Trainer(config).steps(1))


def test_a_gpu_says_what_jax_has_of_it_and_what_would_help_there(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    h100 = load("h100")
    stats = {"bytes_limit": int(h100.pool_bytes), "bytes_in_use": 70 * 2**30}
    device = SimpleNamespace(platform="gpu", device_kind=h100.device_kind, process_index=0, memory_stats=lambda: stats)
    large = Config.from_dict({"model": {"preset": "llama3-8b"}, "mesh": {"data": 8}, "batch": {"global": 64}})
    trainer: Any = SimpleNamespace(
        config=large.resolve(8),
        checkpoints=SimpleNamespace(newest_here=lambda: 20),
        program=SimpleNamespace(mesh=SimpleNamespace(devices=SimpleNamespace(flat=[device] * 8))),
    )
    with pytest.raises(PermanentError) as told, memory_told(trainer):
        raise jax.errors.JaxRuntimeError(SAID)
    message = str(told.value)
    assert "JAX has 72.8 GiB of each, with 70.0 GiB in use" in message
    assert "the newest checkpoint is that of step 20" in message
    before = estimate(Arrangement.of(trainer.config), h100).bytes_per_gpu
    ways = message.partition("the fastest first: ")[2].split("; or ")
    for way in ways:
        changed = Config.from_dict(trainer.config.to_dict(), way.split())
        assert estimate(Arrangement.of(changed), h100).bytes_per_gpu <= before - 3 * 2**30, way

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(memory, "saves", fails)  # the message comes without a plan, too
    with pytest.raises(PermanentError, match=r"Try a smaller batch.micro, recompute=full"), memory_told(trainer):
        raise MemoryError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes.", 1024),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes.", 2**46),
        ("RESOURCE_EXHAUSTED: Failed to allocate request for 3.00GiB (3221225472B) on device ordinal 0", 3 * 2**30),
        ("INTERNAL: Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.5MiB (rounded to 2621440)", 2621440),
        ("RESOURCE_EXHAUSTED: Out of memory.", None),
    ],
)
def test_every_way_of_saying_it_is_known(text: str, size: float | None) -> None:
    assert is_out_of_memory(jax.errors.JaxRuntimeError(text))
    assert asked_bytes(text) == size


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 300000"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Received message larger than max"),
        jax.errors.JaxRuntimeError("INTERNAL: cuDNN error"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes."),
    ],
    ids=str,
)
def test_nothing_else_is_taken_for_it(error: Exception, config: Config) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)) as told, memory_told(Trainer(config)):
        raise error
    assert told.value is error
