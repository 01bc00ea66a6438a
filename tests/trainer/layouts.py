"""The table of layouts that must train as one device does: models, texts, optimizers, and how each is laid out.

Sizes are tiny and chosen not to divide: vocabulary 97, 25 positions, MLP 44, hidden 32 on 3 devices, fewer key and
value heads than tensor ranks. Knows configs and batches; what is measured stands in `benchmarks/equality.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.config import Config

STEPS, GLOBAL, SEQUENCE, VOCAB = 5, 48, 24, 97
IDLE_ROWS = GLOBAL // 4
"""Rows in which nothing counts, with the text `idle`: all that one of up to 4 devices has, or two of 8."""

# Weights spread five times as wide as usual, so that attention is far from uniform and no error hides in it.
_SIZES = {"vocab": VOCAB, "context": 25, "init_std": 0.1}
_LLAMA = _SIZES | {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 44}
_GPT2 = _SIZES | {
    "layers": 2,
    "hidden": 24,
    "heads": 4,
    "positions": "learned",
    "norm": "layernorm",
    "activation": "gelu",
    "bias": True,
    "tied": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama-tied": _LLAMA | {"layers": 3, "kv_heads": 1, "tied": True, "window": 5, "soft_cap": 4.0},
    "gpt2": _GPT2,
    "gpt2-untied": _GPT2 | {"tied": False, "ffn": 44},
    # For pipelines: layers enough for several stages, and numbers of them that do not divide.
    "llama-deep": _LLAMA | {"layers": 8},
    "llama-tied-deep": _LLAMA | {"layers": 5, "kv_heads": 1, "tied": True, "window": 5, "soft_cap": 4.0},
    "gpt2-deep": _GPT2 | {"layers": 4},
    "bloom-deep": _GPT2 | {"layers": 7, "heads": 12, "positions": "alibi", "embedding_norm": True},
    # 12 heads are no power of two, so some of ALiBi's slopes come from between.
    "bloom": _GPT2 | {"heads": 12, "positions": "alibi", "embedding_norm": True},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.05, "schedule": "constant", "clip": None},
    "adamw": {"name": "adamw", "learning_rate": 0.01, "epsilon": 1e-3, "warmup_steps": 2, "clip": 0.5},
    "adamw-1e-8": {"name": "adamw", "learning_rate": 0.003, "epsilon": 1e-8, "schedule": "linear"},
    "lion": {"name": "lion", "learning_rate": 1e-4, "beta2": 0.99},
}
AMPLIFY_ROUNDING = ("adamw-1e-8", "lion")
"""They make a whole step of the smallest gradient, even of one that should be 0: leaves cannot be compared alone."""


@dataclass(frozen=True)
class Task:
    """What is learned: the same on every mesh."""

    model: str
    text: str
    """packed: documents end to end. whole: likewise, and attention goes over all of them. ragged: one a sequence, then
    padding. idle: some rows are nothing but padding."""
    optimizer: str
    dropout: float = 0.0

    def __str__(self) -> str:
        return "-".join([self.model, self.text, self.optimizer, *(["dropout"] if self.dropout else [])])


@dataclass(frozen=True)
class Row:
    """A task, and how it is laid out; by default on one device."""

    task: Task
    zero: int = 0
    data: int = 1
    tensor: int = 1
    replica: int = 1
    accumulation: int = 1
    recompute: str = "none"
    scan: bool = True
    persist_below: int = 0
    pipeline: int = 1
    schedule: str = "1f1b"
    virtual: int = 1
    layers: tuple[int, ...] | None = None
    keep: str = "residuals"
    head: str = "spread"
    attention: str = "reference"
    parts: int = 1

    @property
    def num_devices(self) -> int:
        return self.pipeline * self.data * self.tensor * self.replica

    @property
    def config(self) -> Config:
        model = MODELS[self.task.model] | {"dropout": self.task.dropout, "scan_layers": self.scan}
        micro = GLOBAL // (self.replica * self.data * self.accumulation)
        return Config.from_dict(
            {
                "model": model,
                "mesh": {
                    "pipeline": self.pipeline,
                    "data": self.data,
                    "tensor": self.tensor,
                    "replica": self.replica,
                },
                **({"pipeline": self._pipeline} if self.pipeline > 1 else {}),
                "zero": {"stage": self.zero} | ({"persist_below": self.persist_below} if self.persist_below else {}),
                "batch": {"global": GLOBAL, "micro": micro, "sequence": SEQUENCE}
                | ({"parts": self.parts} if self.parts > 1 else {}),
                "recompute": self.recompute,
                "attention": {"implementation": self.attention}
                | ({"over": "sequence"} if self.task.text == "whole" else {}),
                "optimizer": OPTIMIZERS[self.task.optimizer],
                "train": {"steps": STEPS},
                "seed": 3,
            }
        )

    @property
    def _pipeline(self) -> dict[str, Any]:
        layers = {} if self.layers is None else {"layers": list(self.layers)}
        names = "schedule", "keep", "head"
        return {name: getattr(self, name) for name in names} | {"virtual_stages": self.virtual} | layers

    @property
    def _pipeline_parts(self) -> list[str]:
        parts = [self.schedule if self.virtual == 1 else f"interleaved{self.virtual}"]
        parts += [] if self.layers is None else ["layers" + ".".join(map(str, self.layers))]
        parts += [self.keep] if self.keep != "residuals" else []
        return parts + ([self.head] if self.head != "spread" else [])

    def __str__(self) -> str:
        parts = [str(self.task), f"zero{self.zero}"]
        parts += [
            f"{axis}{size}" for axis in ("pipeline", "replica", "data", "tensor") if (size := getattr(self, axis)) > 1
        ]
        parts += self._pipeline_parts if self.pipeline > 1 else []
        parts += [f"accumulate{self.accumulation}"] if self.accumulation > 1 else []
        parts += [f"parts{self.parts}"] if self.parts > 1 else []
        parts += [self.recompute] if self.recompute != "none" else []
        parts += [self.attention] if self.attention != "reference" else []
        parts += [] if self.scan else ["unrolled"]
        parts += [f"persist{self.persist_below}"] if self.persist_below else []
        return "-".join(parts)


LLAMA = Task("llama", "packed", "sgd")
GPT2 = Task("gpt2", "idle", "adamw", dropout=0.2)
BLOOM = Task("bloom", "ragged", "sgd")
NOISY = Task("llama-tied", "packed", "adamw-1e-8")
WHOLE = Task("llama", "whole", "sgd")
GPT2_WHOLE = Task("gpt2", "whole", "adamw")
LLAMA_DEEP = Task("llama-deep", "packed", "sgd")
GPT2_DEEP = Task("gpt2-deep", "idle", "adamw", dropout=0.2)
BLOOM_DEEP = Task("bloom-deep", "ragged", "sgd")
NOISY_DEEP = Task("llama-tied-deep", "packed", "adamw-1e-8")
WHOLE_DEEP = Task("llama-deep", "whole", "sgd")
TWO_CHUNKS: dict[str, Any] = {"schedule": "interleaved_1f1b", "virtual": 2}
THREE_CHUNKS = TWO_CHUNKS | {"virtual": 3}
SPANNING_PIPELINES = [
    Row(LLAMA_DEEP, zero=1, pipeline=2, data=2, tensor=2, **TWO_CHUNKS, accumulation=4, recompute="selective"),
    Row(LLAMA_DEEP, zero=3, pipeline=4, data=2, layers=(1, 3, 2, 2), accumulation=6, recompute="full"),
    Row(LLAMA_DEEP, zero=0, pipeline=8, schedule="gpipe", accumulation=3, keep="inputs"),
    Row(GPT2_DEEP, zero=2, pipeline=2, replica=2, data=2, head="last", accumulation=4, scan=False),
    Row(GPT2_DEEP, zero=3, pipeline=3, data=2, schedule="gpipe", accumulation=4, keep="inputs", head="last"),
    Row(BLOOM_DEEP, zero=3, pipeline=3, data=2, **TWO_CHUNKS, accumulation=4),
    Row(BLOOM_DEEP, zero=0, pipeline=2, tensor=2, **THREE_CHUNKS, accumulation=3, keep="inputs", scan=False),
]
PALLAS: dict[str, Any] = {"attention": "pallas"}
SPANNING_KERNELS = [
    Row(LLAMA, zero=3, data=2, tensor=2, **PALLAS, accumulation=4, recompute="selective"),
    Row(BLOOM, zero=1, data=2, tensor=4, **PALLAS, recompute="full", scan=False),
    Row(NOISY_DEEP, zero=2, pipeline=2, data=2, tensor=2, **TWO_CHUNKS, **PALLAS, accumulation=6),
]
SPANNING_PARTS = [
    Row(GPT2, zero=3, data=2, tensor=2, accumulation=4, parts=3, recompute="selective"),
    Row(NOISY_DEEP, zero=1, pipeline=2, tensor=2, accumulation=4, parts=2, recompute="full", scan=False),
]
SPANNING_WHOLE = [
    Row(WHOLE, zero=3, data=2, tensor=2, **PALLAS, accumulation=4, recompute="selective"),
]
SPANNING = [
    Row(LLAMA, zero=0, replica=2, data=2, accumulation=4),
    Row(LLAMA, zero=2, data=8, recompute="selective", scan=False),
    Row(LLAMA, zero=3, data=2, tensor=4, recompute="full"),
    Row(GPT2, zero=0, tensor=4, recompute="full", scan=False),
    Row(GPT2, zero=1, data=3, tensor=2, accumulation=4),
    Row(GPT2, zero=2, replica=2, data=2, tensor=2, recompute="selective", scan=False),
    Row(BLOOM, zero=1, data=8, recompute="selective"),
    Row(BLOOM, zero=3, replica=2, data=4, recompute="full", scan=False),
    Row(NOISY, zero=2, data=4, persist_below=64),
    *SPANNING_PIPELINES,
    *SPANNING_KERNELS,
    *SPANNING_PARTS,
    *SPANNING_WHOLE,
]
"""A part that has every value of every factor, and the pairs that are likeliest to go wrong."""

LLAMA_IDLE = Task("llama", "idle", "adamw", dropout=0.2)
LLAMA_TIED = Task("llama-tied", "ragged", "sgd")
GPT2_UNTIED = Task("gpt2-untied", "packed", "sgd")
GPT2_NOISY = Task("gpt2", "ragged", "adamw-1e-8")
LION = Task("llama", "packed", "lion")
BLOOM_DROPOUT = Task("bloom", "packed", "adamw", dropout=0.2)
LLAMA_DEEP_IDLE = Task("llama-deep", "idle", "adamw", dropout=0.2)
LLAMA_TIED_DEEP = Task("llama-tied-deep", "ragged", "sgd")
LION_DEEP = Task("llama-deep", "packed", "lion")
BLOOM_DEEP_DROPOUT = Task("bloom-deep", "packed", "adamw", dropout=0.2)
PIPELINES = [
    *(Row(LLAMA_DEEP, zero=stage, pipeline=2, data=2, accumulation=4) for stage in range(4)),
    *(Row(LLAMA_DEEP, pipeline=4, tensor=2, schedule=name, accumulation=6) for name in ("gpipe", "1f1b")),
    Row(LLAMA_DEEP, pipeline=4, tensor=2, **TWO_CHUNKS, accumulation=6, keep="inputs"),
    Row(LLAMA_DEEP, pipeline=2),
    Row(LLAMA_DEEP, pipeline=8, accumulation=12, head="last", recompute="selective"),
    Row(LLAMA_DEEP, pipeline=8, schedule="gpipe", scan=False),
    Row(LLAMA_DEEP, zero=3, pipeline=4, data=2, **TWO_CHUNKS, accumulation=3, recompute="full", scan=False),
    Row(LLAMA_DEEP, zero=2, pipeline=3, data=2, layers=(4, 1, 3), accumulation=8, recompute="selective", scan=False),
    Row(LLAMA_DEEP, pipeline=2, tensor=4, **THREE_CHUNKS, layers=(1, 2, 1, 1, 2, 1), accumulation=3, keep="inputs"),
    Row(LLAMA_DEEP, zero=3, pipeline=2, data=2, tensor=2, accumulation=3, keep="inputs", persist_below=64),
    Row(LLAMA_DEEP_IDLE, zero=1, pipeline=2, replica=2, data=2, **TWO_CHUNKS, accumulation=6, recompute="selective"),
    Row(LLAMA_DEEP_IDLE, zero=2, pipeline=4, data=2, schedule="gpipe", accumulation=4, keep="inputs"),
    Row(LLAMA_DEEP_IDLE, zero=3, pipeline=2, tensor=4, **TWO_CHUNKS, head="last", recompute="full", scan=False),
    Row(LLAMA_TIED_DEEP, zero=3, pipeline=4, data=2, accumulation=6, recompute="selective"),
    Row(LLAMA_TIED_DEEP, zero=1, pipeline=2, data=2, tensor=2, **TWO_CHUNKS, accumulation=4, recompute="full"),
    Row(LLAMA_TIED_DEEP, zero=2, pipeline=3, data=2, schedule="gpipe", head="last", scan=False),
    Row(GPT2_DEEP, zero=1, pipeline=4, data=2, accumulation=4, recompute="full"),
    Row(GPT2_DEEP, zero=3, pipeline=2, replica=2, data=2, **TWO_CHUNKS, accumulation=3, keep="inputs", head="last"),
    Row(GPT2_DEEP, pipeline=3, tensor=2, layers=(2, 1, 1), accumulation=4, recompute="selective", scan=False),
    Row(GPT2_DEEP, zero=2, pipeline=2, data=4, schedule="gpipe", head="last", recompute="selective"),
    Row(GPT2_DEEP, zero=3, pipeline=2, data=3, **TWO_CHUNKS, accumulation=8, recompute="full"),
    Row(LION_DEEP, zero=2, pipeline=3, data=2, accumulation=4),
    Row(BLOOM_DEEP, pipeline=2, tensor=3, accumulation=6, keep="inputs"),
    Row(BLOOM_DEEP, zero=1, pipeline=3, data=2, **TWO_CHUNKS, head="last", accumulation=3, recompute="selective"),
    Row(BLOOM_DEEP, zero=3, pipeline=2, data=2, tensor=2, **THREE_CHUNKS, accumulation=2, recompute="full", scan=False),
    Row(BLOOM_DEEP, pipeline=4, replica=2, schedule="gpipe", accumulation=3, head="last"),
    Row(BLOOM_DEEP_DROPOUT, zero=2, pipeline=2, data=2, tensor=2, **TWO_CHUNKS, accumulation=6, keep="inputs"),
    Row(BLOOM_DEEP_DROPOUT, zero=3, pipeline=2, data=3, layers=(2, 5), accumulation=4, recompute="selective"),
    Row(NOISY_DEEP, zero=3, pipeline=2, data=4, **TWO_CHUNKS, accumulation=3, recompute="full"),
    Row(NOISY_DEEP, pipeline=3, tensor=2, accumulation=6, keep="inputs", head="last", scan=False),
]
REST_WHOLE = [
    *(Row(WHOLE, zero=stage, data=2, tensor=2) for stage in range(4)),
    Row(WHOLE, zero=1, replica=2, data=2, accumulation=3, recompute="full", scan=False),
    Row(GPT2_WHOLE, zero=3, data=4, accumulation=4, recompute="selective"),
    Row(WHOLE_DEEP, pipeline=8, schedule="gpipe", accumulation=3, keep="inputs"),
    Row(WHOLE_DEEP, zero=3, pipeline=4, data=2, layers=(1, 3, 2, 2), head="last", **PALLAS, recompute="selective"),
]
REST = [
    *REST_WHOLE,
    Row(GPT2_DEEP, zero=1, pipeline=2, data=3, **TWO_CHUNKS, recompute="full"),
    Row(NOISY_DEEP, zero=2, pipeline=2, data=2, tensor=2, **TWO_CHUNKS, head="last", accumulation=6),
    Row(NOISY_DEEP, zero=1, pipeline=4, data=2, accumulation=6, recompute="selective", persist_below=64),
    Row(WHOLE_DEEP, zero=2, pipeline=2, data=2, tensor=2, **TWO_CHUNKS, accumulation=4),
    Row(GPT2_WHOLE, zero=1, data=2, tensor=4, parts=2, recompute="full"),
    Row(LLAMA, zero=1, data=4, tensor=2, accumulation=3),
    Row(LLAMA, zero=3, data=3, accumulation=4),
    Row(GPT2, zero=3, data=4, tensor=2, accumulation=4, recompute="full"),
    Row(BLOOM, zero=2, data=2, tensor=4, accumulation=4),
    Row(NOISY, zero=1, replica=2, data=2, tensor=2, accumulation=4, recompute="selective"),
    *(Row(LLAMA, zero=stage, data=2) for stage in range(4)),
    *(Row(LLAMA, zero=stage, data=2, tensor=2, accumulation=4) for stage in range(4)),
    Row(LLAMA, accumulation=4),
    Row(LLAMA, recompute="selective"),
    Row(LLAMA, recompute="full", scan=False),
    Row(LLAMA, scan=False),
    Row(LLAMA, tensor=4),
    Row(LLAMA, zero=2, data=6, accumulation=4, recompute="full"),
    Row(LLAMA_IDLE, replica=2, tensor=4, accumulation=4),
    Row(LLAMA_IDLE, zero=1, data=8, accumulation=3, recompute="full"),
    Row(LLAMA_IDLE, zero=2, data=3, tensor=2, recompute="selective", scan=False),
    Row(LLAMA_IDLE, zero=3, data=4, tensor=2, accumulation=4, recompute="full"),
    Row(LLAMA_IDLE, zero=3, data=2, tensor=4, accumulation=4, recompute="selective", scan=False),
    Row(LLAMA_TIED, zero=1, data=2, tensor=4),
    Row(LLAMA_TIED, zero=2, data=3, tensor=2, accumulation=4, recompute="full"),
    Row(LLAMA_TIED, zero=3, replica=2, data=2, tensor=2, accumulation=4, recompute="selective"),
    Row(LLAMA_TIED, zero=3, data=8, scan=False),
    Row(GPT2, replica=2),
    Row(GPT2, zero=1, data=8, accumulation=3, recompute="full", scan=False),
    Row(GPT2, zero=3, data=2, tensor=4, recompute="selective"),
    Row(GPT2, zero=3, replica=2, data=3, accumulation=4, scan=False),
    Row(GPT2_UNTIED, zero=0, data=8, recompute="selective"),
    Row(GPT2_UNTIED, zero=2, data=4, tensor=2, accumulation=4, recompute="full", scan=False),
    Row(GPT2_UNTIED, zero=3, data=3, tensor=2, recompute="full"),
    Row(GPT2_UNTIED, zero=3, data=4, persist_below=100, recompute="selective", scan=False),
    Row(GPT2_NOISY, zero=2, data=2, tensor=2, accumulation=4, recompute="full"),
    Row(GPT2_NOISY, zero=3, data=3, tensor=2, scan=False),
    Row(LION, zero=1, data=8),
    Row(LION, zero=3, data=3, tensor=2, accumulation=4),
    Row(BLOOM, zero=0, tensor=2, accumulation=4, recompute="selective", scan=False),
    Row(BLOOM, zero=3, data=2, tensor=3, accumulation=4, recompute="full"),
    Row(BLOOM_DROPOUT, zero=1, replica=2, data=4, accumulation=3, recompute="full"),
    Row(BLOOM_DROPOUT, zero=2, data=3, tensor=2, accumulation=4, scan=False),
    Row(BLOOM_DROPOUT, zero=3, data=2, tensor=4, accumulation=4, recompute="selective"),
    Row(NOISY, zero=3, data=2, tensor=4, accumulation=4, recompute="full"),
    Row(NOISY, zero=3, data=8, scan=False),
    *PIPELINES,
]
MANY = [
    Row(LLAMA_DEEP, zero=3, pipeline=3, data=2, tensor=2, **TWO_CHUNKS, accumulation=4),
    Row(LLAMA_DEEP, zero=1, pipeline=8, data=2, accumulation=6, recompute="full"),
    Row(GPT2_DEEP, zero=3, pipeline=2, replica=2, data=2, tensor=2, **TWO_CHUNKS, accumulation=6, head="last"),
    Row(LLAMA, zero=2, data=12, accumulation=4),
    Row(LLAMA, zero=3, data=6, tensor=2, recompute="full"),
    Row(LLAMA, zero=3, replica=2, data=6, tensor=4, accumulation=4),
]
"""Group sizes that need more devices than a test has: 12, 16, and 48."""

ROWS = [*SPANNING, *REST, *MANY]


def batches(text: str) -> list[dict[str, np.ndarray]]:
    """The global batch of each step, by the names of Batch."""
    random = np.random.default_rng(0)
    return [
        {**_sequences(text, random), "samples": np.arange(GLOBAL, dtype=np.uint32) + step * GLOBAL}
        for step in range(STEPS)
    ]


def _sequences(text: str, random: np.random.Generator) -> dict[str, np.ndarray]:
    tokens = random.integers(VOCAB, size=(GLOBAL, SEQUENCE + 1), dtype=np.int32)
    place = np.arange(SEQUENCE, dtype=np.int32)
    if text in ("packed", "whole"):
        starts = random.random((GLOBAL, SEQUENCE)) < 0.2
        starts[:, 0] = True
        segments = np.cumsum(starts, axis=1, dtype=np.int32)
        positions = place - np.maximum.accumulate(np.where(starts, place, 0), axis=1)
        counted = np.append(~starts[:, 1:], np.ones((GLOBAL, 1), bool), axis=1)  # no target in another document
    else:
        length = random.integers(2, SEQUENCE + 1, size=(GLOBAL, 1))
        length[:IDLE_ROWS] = 0 if text == "idle" else length[:IDLE_ROWS]
        counted = place < length
        segments = counted.astype(np.int32)
        positions = np.where(counted, place, 0)
    fields = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "segments": segments, "positions": positions}
    return {name: np.where(segments > 0, x, 0).astype(np.int32) for name, x in fields.items()} | {
        "weights": counted.astype(np.float32)
    }
