"""`meshwright doctor`: what is installed, what jax sees, what is missing, and one train step as proof.

Every check returns Findings, and only the table of them is printed. Knows the trainer only as something that
trains.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from models.config import ModelConfig
from sharding.mesh import MeshConfig
from trainer.config import Config
from trainer.data.config import DataConfig
from trainer.gpu_memory import asked_for
from trainer.gpu_settings import gpu_settings
from trainer.jax_start import has_driver
from trainer.lines import read_jsonl
from trainer.paths import local
from trainer.run_folder import PACKAGES, version
from trainer.settings import BatchConfig, RunConfig, TrainConfig
from trainer.streams import make_console

_CUDA_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}
_LOW_DISK = 10 * 2**30


class Finding(NamedTuple):
    subject: str
    text: str
    state: str = "ok"
    """ok, warn or fail."""
    advice: str = ""


def doctor(console: Console | None = None) -> int:
    """Prints what was found. Returns the exit code: 1 when this machine cannot train, else 0."""
    console = console or make_console()
    findings = [
        *_software(),
        *_hardware(),
        *_disks(RunConfig().compile_cache, DataConfig().cache),
    ]
    step, details = _train_step()
    findings.append(step)
    console.print(_table(findings))
    if details:
        console.print(details, markup=False, highlight=False, soft_wrap=True)
    return int(any(finding.state == "fail" for finding in findings))


def _table(findings: list[Finding]) -> Table:
    table = Table(title="meshwright doctor", title_justify="left", show_header=False, box=None)
    for finding in findings:
        mark, style = _MARKS[finding.state]
        text = Text(finding.text)  # not markup: errors are full of brackets
        if finding.advice:
            text.append(f"\n{finding.advice}", style)
        table.add_row(Text(mark, style), finding.subject, text)
    return table


def _software() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    for name in PACKAGES:
        found = version(name)
        missing = Finding(name, "not installed", "warn", "pip install -e . in a checkout of meshwright")
        yield Finding(name, found) if found else missing


def _hardware() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    yield Finding("host memory", f"{_gib(memory.available)} of {_gib(memory.total)} free, {os.cpu_count()} cores")
    try:
        devices = jax.devices()
    except RuntimeError as error:
        yield Finding("devices", f"jax finds none: {error}", "fail", f"unset JAX_PLATFORMS (now {_platforms()})")
        devices = []
    alike = Counter((device.device_kind, _capacity(device)) for device in devices)
    for (kind, capacity), count in alike.items():
        yield Finding("devices", f"{count} x {kind}" + (f", {_gib(capacity)} each" if capacity else ""))
    for device in devices[:1]:
        yield from _xla(device)
    yield Finding("GPU memory", f"JAX takes so much of a GPU's: {asked_for()}")
    yield _gpu_finding(
        driver=has_driver(),
        plugin=next((f"{name} {version(name)}" for name in _CUDA_PLUGINS if version(name)), None),
        in_use=any(device.platform in ("gpu", "cuda") for device in devices),
    )


def _xla(device: jax.Device) -> Iterator[Finding]:
    """What XLA is told for a device, and what is left as it is."""
    settings = gpu_settings(device)
    for flag in settings.flags:
        yield Finding("XLA", f"{flag.name}={flag.value}: {flag.because}")
    for note in settings.notes:
        yield Finding("XLA", note, "warn")


def _gpu_finding(driver: bool, plugin: str | None, in_use: bool) -> Finding:
    """What stands between this machine and its NVIDIA GPUs, if it has any."""
    if in_use:
        return Finding("GPUs", f"in use, through {plugin or 'jax'}")
    if not driver:
        return Finding("GPUs", "no NVIDIA driver: training runs on the CPU")
    if plugin is None:
        return Finding("GPUs", "an NVIDIA driver, but no jax CUDA plugin", "warn", "pip install 'meshwright[cuda]'")
    return Finding(
        "GPUs",
        f"an NVIDIA driver and {plugin}, but jax does not use them",
        "warn",
        f"see that nvidia-smi lists them, that JAX_PLATFORMS (now {_platforms()}) allows cuda, and that the "
        f"plugin is as new as jaxlib {version('jaxlib')}",
    )


def _disks(*caches: str | None) -> Iterator[Finding]:
    """Room where runs and caches are written; a folder that is not there yet counts as its parent."""
    for path in dict.fromkeys([Path.cwd(), *(Path(local(cache)) for cache in caches if cache)]):
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        free = shutil.disk_usage(place).free
        text = f"{_gib(free)} free at {path}"
        if not os.access(place, os.W_OK):
            yield Finding("disk", text, "warn", f"{place} cannot be written to")
        elif free < _LOW_DISK:
            yield Finding("disk", text, "warn", "checkpoints of a large model will not fit")
        else:
            yield Finding("disk", text)


def _train_step() -> tuple[Finding, str]:
    """One step of a tiny model over all devices; and, when it fails, the traceback."""
    start = time.perf_counter()
    said = io.StringIO()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            loss = _train(Path(folder))
    except Exception as error:
        advice = "the traceback is below"
        return Finding("train step", f"{type(error).__name__}: {error}", "fail", advice), traceback.format_exc()
    seconds = time.perf_counter() - start
    return Finding("train step", f"loss {loss:.3f}, {seconds:.1f} s with compiling"), ""


def _train(folder: Path) -> float:
    """The loss of the first step, as the run's own folder tells it."""
    from trainer.trainer import Trainer  # here, so that what it fails to import is a finding too

    text = folder / "text.txt"
    text.write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(2000)), encoding="utf-8")
    run = folder / "run"
    config = Config(
        model=ModelConfig(layers=2, hidden=64, heads=4, vocab=512),
        mesh=MeshConfig(data=-1),
        batch=BatchConfig(**{"global": jax.device_count(), "sequence": 64}),
        data=DataConfig(path=str(text), cache=str(folder / "cache"), holdout=0),
        train=TrainConfig(steps=1, log_every=1),
        run=RunConfig(name="doctor", dir=str(run), compile_cache=None, tensorboard=False),
    )
    Trainer(config).train()
    return next(record["loss"] for record in read_jsonl(run / "metrics.jsonl") if "loss" in record)


def _capacity(device: jax.Device) -> int:
    """Bytes that jax may use on the device, or 0 where it cannot tell."""
    return (device.memory_stats() or {}).get("bytes_limit", 0)


def _platforms() -> str:
    return os.environ.get("JAX_PLATFORMS") or "not set"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
