"""A train step of a 1B model on one GPU, with each implementation of attention: tokens a second, MFU, and the loss.

The losses of the implementations have to agree: they train the same model on the same tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from models.inputs import Batch
from pallas_kernels.attention import able
from pallas_kernels.config import AttentionConfig
from sharding.mesh import make_mesh
from trainer.attention import wanted
from trainer.bench.speed import problem_of
from trainer.chips import peak_flops
from trainer.config import Config
from trainer.devices import put_batch
from trainer.metrics import model_flops_per_token
from trainer.program import Program
from trainer.tables import make_table, wide_console

CONFIG = Path(__file__).parents[1] / "configs" / "llama3.2-1b.yaml"
OVER = "attention.over=sequence"
"""All that cuDNN does; and every sequence is one document."""
ONE_GPU = ["mesh.data=1", "zero.stage=0", "batch.global=4", "batch.micro=2", "batch.sequence=4096", OVER]
"""46 GiB by `meshwright plan` with the reference."""
TINY = [
    "model={layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256, context: 32}",
    "mesh.data=1",
    "zero.stage=0",
    "batch.global=2",
    "batch.micro=2",
    "batch.sequence=32",
    OVER,
]
WARMUP, STEPS = 2, 5
ALLOWED = 0.01
"""How far the losses of two implementations may be apart, in nats."""


@dataclass(frozen=True)
class Trained:
    implementation: str
    loss: float
    """After all steps, in nats."""
    seconds: float
    """Of a step."""


def check(device: jax.Device, dry: bool) -> list[str]:
    """Prints the speeds; returns what is wrong, a line each."""
    config = Config.load(CONFIG, TINY if dry else ONE_GPU)
    trained: list[Trained] = []
    wrong = []
    for name in able(wanted(config, None if device.platform == "cpu" else device.device_kind)):
        attention = AttentionConfig(implementation=name, over=config.attention.over)
        try:
            trained.append(_train(device, name, replace(config, attention=attention)))
            print(trained[-1], flush=True)
        except Exception as error:
            wrong.append(f"{name}: {problem_of(error)}")
    _show(config, device, trained)
    return [*wrong, *_apart(trained)]


def _train(device: jax.Device, name: str, config: Config) -> Trained:
    program = Program(config, make_mesh(config.mesh, [device]))
    state, batch = program.init(), _batch(program)
    for _ in range(WARMUP):  # the first compiles
        state, metrics = program.step(state, batch)
    jax.block_until_ready(metrics)
    start = time.perf_counter()
    for _ in range(STEPS):
        state, metrics = program.step(state, batch)
    jax.block_until_ready(metrics)
    return Trained(name, float(metrics.loss), (time.perf_counter() - start) / STEPS)


def _batch(program: Program) -> Batch:
    """Random tokens, every sequence one document."""
    batch, vocab = program.config.batch, program.config.model.vocab
    text = np.random.default_rng(0).integers(vocab, size=(batch.global_, batch.sequence + 1), dtype=np.int32)
    tokens, targets = text[:, :-1], text[:, 1:]
    ones = np.ones_like(tokens)
    places = np.broadcast_to(np.arange(batch.sequence, dtype=np.int32), ones.shape)
    samples = np.arange(batch.global_, dtype=np.uint32)
    arrays = tokens, targets, ones, places, ones.astype(np.float32), samples
    rows = dict(zip(Batch._fields, arrays, strict=True))

    def part(low: int, high: int) -> dict[str, np.ndarray]:
        return {name: array[low:high] for name, array in rows.items()}

    return put_batch(program.mesh, program.batch_specs, batch.global_, part)


def _apart(trained: list[Trained]) -> Iterator[str]:
    losses = {one.implementation: one.loss for one in trained}
    if not all(map(math.isfinite, losses.values())) or max(losses.values()) - min(losses.values()) > ALLOWED:
        yield f"losses are not the same: {losses}"


def _show(config: Config, device: jax.Device, trained: list[Trained]) -> None:
    batch = config.batch
    tokens = batch.global_ * batch.sequence
    peak = peak_flops(device.device_kind, config.precision.compute)
    title = f"{config.run.name}: {batch.global_} x {batch.sequence:,} tokens a step, micro-batches of {batch.micro}"
    table = make_table(title, ["attention"], ["s a step", "tokens/s", "model TFLOP/s", "MFU", "loss"])
    for one in trained:
        speed = tokens / one.seconds
        flops = speed * model_flops_per_token(config.model, batch.sequence)
        mfu = "-" if peak is None else f"{flops / peak:.1%}"
        cells = f"{one.seconds:.3f}", f"{speed:,.0f}", f"{flops / 1e12:.4g}", mfu, f"{one.loss:.4f}"
        table.add_row(one.implementation, *cells)
    wide_console().print(table)
