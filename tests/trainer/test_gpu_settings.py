"""What XLA is told: on GPUs of the table, unless the user says otherwise or the installed XLA knows no such flag."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from rich.console import Console

from sharding.mesh import make_mesh
from tests.trainer.planner.arrangements import tiny
from trainer import doctor, gpu_settings
from trainer.errors import ConfigError
from trainer.gpu_settings import Flag
from trainer.planner import KINDS, load
from trainer.planner.compiled import absent_gpus, check_installed
from trainer.program import Program

SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
A100: Any = SimpleNamespace(device_kind="NVIDIA A100-SXM4-80GB")


def has_plugin() -> bool:
    try:
        check_installed()
    except ConfigError:
        return False
    return True


@pytest.fixture
def takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """An XLA that knows every flag."""
    monkeypatch.setattr(gpu_settings, "_objection", lambda *_: None)


def table(monkeypatch: pytest.MonkeyPatch, **flags: bool | int | str) -> None:
    """One for the CPU, whose XLA knows the flags of GPUs too."""
    made = tuple(Flag(name, value, ("cpu",), "a test") for name, value in flags.items())  # type: ignore[arg-type]
    monkeypatch.setattr(gpu_settings, "FLAGS", made)


@pytest.mark.parametrize("value", [True, "perhaps"], ids=["unknown flag", "unknown value"])
def test_what_xla_does_not_take_is_left_out_with_a_word(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = "xla_gpu_made_up" if value is True else "xla_gpu_enable_pipelined_p2p"
    table(monkeypatch, **{SCHEDULER: True, odd: value})
    found = gpu_settings.gpu_settings(jax.devices()[0], environment={})
    assert found.options == {SCHEDULER: True}
    (note,) = found.notes
    assert note.startswith(f"{odd} is left out, this XLA does not take it: INVALID_ARGUMENT")


def test_the_step_is_compiled_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by a value that XLA refuses, once nobody has asked it before."""
    table(monkeypatch, xla_gpu_enable_pipelined_p2p="perhaps")
    monkeypatch.setattr(gpu_settings, "_objection", lambda *_: None)
    config = tiny("mesh={data: 1}")
    program = Program(config, make_mesh(config.mesh, jax.devices()[:1]))
    lowered = program.step.lower(program.abstract_state(), program.abstract_batch())
    with pytest.raises(jax.errors.JaxRuntimeError, match="'perhaps' is not a valid bool"):
        lowered.compile()


@pytest.mark.usefixtures("takes_all")
@pytest.mark.parametrize("flags", ["--{}=false", "--xla_dump_to=/tmp/a --{}", "--{}=true --xla_gpu_autotune_level=0"])
@pytest.mark.parametrize("in_file", [False, True])
def test_what_the_user_sets_stays(flags: str, in_file: bool, tmp_path: Path) -> None:
    text = flags.format(SCHEDULER)
    if in_file:
        (tmp_path / "flags").write_text(text)
        text = str(tmp_path / "flags")
    found = gpu_settings.gpu_settings(A100, environment={"XLA_FLAGS": text})
    assert SCHEDULER not in found.options
    assert found.notes == (f"{SCHEDULER} is as XLA_FLAGS has it",)
    others = {"XLA_FLAGS": f"--{SCHEDULER}_of_another"}
    assert SCHEDULER in gpu_settings.gpu_settings(A100, environment=others).options


def test_the_cpu_is_told_nothing() -> None:
    assert gpu_settings.gpu_settings(jax.devices()[0]) == gpu_settings.GpuSettings()


@pytest.mark.usefixtures("takes_all")
def test_parts_are_kept_apart() -> None:
    plain, parts = (gpu_settings.gpu_settings(A100, in_parts, {}).options for in_parts in (False, True))
    assert parts.items() - plain.items() == {("xla_gpu_reduce_scatter_combine_threshold_bytes", str(8 * 2**20))}


@pytest.mark.usefixtures("takes_all")
def test_the_doctor_shows_flags_with_their_reasons() -> None:
    console = Console(file=io.StringIO(), width=300)
    console.print(doctor._table([*doctor._xla(A100)]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for flag in gpu_settings.FLAGS:
        assert (f"{flag.name}={flag.value}: {flag.because}" in text) is not flag.in_parts


TOLD = [
    kind
    for kind in KINDS
    if load(kind).xla_target
    and any(name in load(kind).device_kind for flag in gpu_settings.FLAGS for name in flag.kinds)
]
"""GPUs that XLA is told something for, and can compile for without one."""


@pytest.mark.skipif(not has_plugin(), reason="the extra `plan` is not installed")
@pytest.mark.parametrize("kind", TOLD)
def test_the_installed_xla_knows_every_flag(kind: str) -> None:
    found = gpu_settings.gpu_settings(absent_gpus(load(kind), 1)[0], in_parts=True, environment={})
    assert found.options
    assert found.notes == ()
