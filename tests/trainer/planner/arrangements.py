"""Arrangements that the tests of estimates share: a tiny decoder, and presets on meshes that they are trained on."""

from __future__ import annotations

from typing import Any

from trainer.config import Config
from trainer.description import resolve

REFERENCE = {"implementation": "reference"}
"""Its scores are matmuls and arrays like others; kernels round what they do up to their tiles."""
TINY: dict[str, Any] = {
    "model": {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 144, "vocab": 320, "context": 64},
    "batch": {"global": 16, "micro": 1, "sequence": 64},
    "precision": {"compute": "bfloat16"},
    "attention": REFERENCE,
}
LARGE: dict[str, dict[str, Any]] = {
    "gpt3-175b": {
        "mesh": {"pipeline": 8, "data": 4, "tensor": 8},
        "batch": {"global": 64, "micro": 1, "sequence": 2048},
    },
    "bloom-176b": {
        "mesh": {"pipeline": 10, "data": 2, "tensor": 4},
        "batch": {"global": 64, "micro": 2, "sequence": 2048},
    },
    "llama3-8b": {"mesh": {"data": 16, "tensor": 2}, "batch": {"global": 16, "micro": 1, "sequence": 8192}},
    "llama3-70b": {
        "mesh": {"pipeline": 4, "data": 2, "tensor": 8},
        "batch": {"global": 64, "micro": 1, "sequence": 8192},
    },
}


def tiny(*overrides: str) -> Config:
    """The tiny decoder, no mesh axis of which is -1."""
    return resolve(Config.from_dict(TINY, overrides))[0]


def large(preset: str, *overrides: str) -> Config:
    """A preset in bfloat16 on its mesh in `LARGE`."""
    tree = {"model": {"preset": preset}, "precision": {"compute": "bfloat16"}, "attention": REFERENCE, **LARGE[preset]}
    return resolve(Config.from_dict(tree, overrides))[0]
