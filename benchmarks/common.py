"""What the speed benchmarks share: one small decoder and a batch for it, CPU time in interleaved rounds, and a table.

What is compared takes its turn, a few steps at a time: whatever else the machine does meanwhile falls on all alike, so
ratios hold where seconds do not.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from models.inputs import Batch
from trainer.config import Config
from trainer.tables import make_table, wide_console

Step = Callable[[], object]
"""Trains one step, and returns something that is ready when the step is done."""


@dataclass(frozen=True)
class Sizes:
    """A decoder with RMSNorm, rotary positions, SwiGLU and an output matrix of its own, in float32."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    ffn: int = 1024
    vocab: int = 8192
    sequence: int = 256
    batch: int = 8

    def config(self, **sections: Mapping[str, Any]) -> Config:
        """This model and batch, AdamW at a constant learning rate; `sections` are added to it."""
        model = {"layers": self.layers, "hidden": self.hidden, "heads": self.heads, "ffn": self.ffn}
        model |= {"vocab": self.vocab, "context": self.sequence}
        tree: dict[str, Any] = {
            "model": model | dict(sections.get("model", {})),
            "batch": {"global": self.batch, "sequence": self.sequence},
            "optimizer": {"name": "adamw", "schedule": "constant"},
        }
        return Config.from_dict({**sections, **tree})

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """Random tokens and their targets, int32 [B, S] each."""
        text = np.random.default_rng(0).integers(self.vocab, size=(self.batch, self.sequence + 1), dtype=np.int32)
        return text[:, :-1], text[:, 1:]

    def rows(self) -> Batch:
        """The same as the trainer takes them: every sequence one document, every target counted."""
        tokens, targets = self.tokens()
        ones = np.ones_like(tokens)
        positions = np.broadcast_to(np.arange(self.sequence, dtype=np.int32), tokens.shape)
        samples = np.arange(self.batch, dtype=np.uint32)
        return Batch(tokens, targets, ones, positions, ones.astype(np.float32), samples)


@dataclass
class Times:
    """Seconds per step of one variant, an entry for every round."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def measured(self, steps: int) -> Iterator[None]:
        """Notes what one of the `steps` steps within took; CPU time is the whole process's, of all its threads."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.append((time.perf_counter() - wall) / steps)
        self.cpu.append((time.process_time() - cpu) / steps)


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over the rounds of ours / theirs: what happens to the machine between rounds cancels."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table of text and right-aligned numbers, under what it was measured on."""
    table = make_table(title, columns[:1], columns[1:])
    for row in rows:
        table.add_row(*row)
    console = wide_console()
    console.print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, jax {jax.__version__}"
    )
    console.print(table)
