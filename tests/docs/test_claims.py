"""What the docs promise and no other test would notice."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from models.inputs import Batch
from sharding.mesh import make_mesh
from trainer import logical
from trainer.checkpoint import Checkpoints
from trainer.config import Config
from trainer.program import Program
from trainer.schedules import learning_rate

ROOT = Path(__file__).parents[2]
MAY_IMPORT = {
    "sharding": set(),
    "pallas_kernels": set(),
    "models": {"sharding", "pallas_kernels"},
    "trainer": {"models", "sharding", "pallas_kernels"},
}


def imported(file: Path) -> Iterator[str]:
    """The top package of everything that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for file in files:
        ours = {name for name in imported(file) if name in MAY_IMPORT and name != package}
        assert ours <= MAY_IMPORT[package], file


def test_a_skipped_step_changes_nothing_but_the_count_of_steps() -> None:
    """docs/precision.md: at the largest scale the first float16 gradients overflow."""
    config = Config.from_dict(
        {
            "model": {"layers": 1, "hidden": 16, "heads": 2, "vocab": 32, "context": 16},
            "mesh": {"data": 2},
            "batch": {"global": 4, "sequence": 16},
            "precision": {"compute": "float16", "loss_scale": {"initial_power": 32, "hysteresis": 1}},
            "optimizer": {"warmup_steps": 10},
            "train": {"steps": 100},
        }
    )
    program = Program(config, make_mesh(config.mesh, jax.devices()[:2]))
    batch = some_batch(program)
    state = program.init()
    before = jax.device_get(logical.to_logical(program, state))
    state, metrics = program.step(state, batch)
    after = jax.device_get(logical.to_logical(program, state))

    assert not np.isfinite(metrics.grad_norm)
    assert metrics.skipped_steps == 1
    assert after["step"] == 1
    assert after["loss_scale.scale"] == 2.0**31
    held = [name for name in before if name.startswith(("parameters.", "optimizer."))]
    assert "optimizer.count" in held
    for name in held:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    _, metrics = program.step(state, batch)
    assert metrics.learning_rate == learning_rate(config.optimizer, 100)(1)


def test_sigterm_saves_and_says_so(tmp_path: Path) -> None:
    """docs/checkpoints.md: the step is finished and saved, and the exit code is the signal's."""
    run = tmp_path / "run"
    (tmp_path / "text.txt").write_text("a word and another word, " * 200, encoding="utf-8")
    overrides = [
        "model={layers: 1, hidden: 16, heads: 2, vocab: 300, context: 32}",
        "batch={global: 2, sequence: 32}",
        f"data={{path: {tmp_path}/text.txt, cache: {tmp_path}/cache, holdout: 0}}",
        f"run={{dir: {run}, tensorboard: false}}",
        "train={steps: 1000000, log_every: 1}",
        "mesh={data: 1, virtual_devices: 1}",
        "zero={}",
        "optimizer={}",
    ]
    command = [sys.executable, "-m", "trainer", "train", "configs/quickstart.yaml", *overrides]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    last = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])["step"]
    assert f"after step {last}, saved" in output
    assert Checkpoints(run / "checkpoints", keep=2).newest() == last


def some_batch(program: Program) -> Batch:
    shapes = program.abstract_batch()
    tokens = np.arange(np.prod(shapes.tokens.shape)).reshape(shapes.tokens.shape) % program.config.model.vocab
    ones = np.ones_like(tokens)
    arrays = Batch(tokens, np.roll(tokens, -1, 1), ones, ones.cumsum(1) - 1, ones, np.arange(len(tokens)))
    return jax.tree.map(lambda x, shape: jax.device_put(x.astype(shape.dtype), shape.sharding), arrays, shapes)
