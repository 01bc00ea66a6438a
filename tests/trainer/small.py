"""A run small enough for a test: what it learns, as a config's tree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

VOCAB = 300
CONTEXT = 32
ON_ONE_DEVICE: dict[str, Any] = {
    "mesh": {"virtual_devices": 1},
    "batch.global": 4,
    "precision.compute": "bfloat16",
    "recompute": "full",
}
"""Overrides: what most people try first with offload."""
WORDS = ("def", "class", "return", "if", "else", "for", "in", "while", "self", "x", "y", "value")


def write_text(folder: Path, num_documents: int = 20) -> Path:
    """Documents of 160 words of code that means nothing."""
    folder.mkdir(parents=True)
    choose = random.Random(0).choice
    for index in range(num_documents):
        lines = (" ".join(choose(WORDS) for _ in range(8)) for _ in range(20))
        Path(folder, f"{index}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def tree(text: Path, run: Path) -> dict[str, Any]:
    """Four steps on eight devices, data 4 x tensor 2, with evaluations and checkpoints. `run` need not exist."""
    return {
        "model": {"layers": 1, "hidden": 32, "heads": 2, "vocab": VOCAB, "context": CONTEXT},
        "mesh": {"data": 4, "tensor": 2},
        "zero": {"stage": 1},
        "batch": {"global": 8, "sequence": 16},
        "optimizer": {"learning_rate": 0.01, "schedule": "constant"},
        "data": {"path": str(text), "cache": str(text.parent / "cache"), "holdout": 0.2},
        "train": {"steps": 4, "log_every": 1, "eval_every": 2, "checkpoint_every": 2, "keep_checkpoints": 3},
        "run": {"name": "small", "dir": str(run), "compile_cache": None},
    }
