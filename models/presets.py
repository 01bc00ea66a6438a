"""Published decoders as values of ModelConfig, and how many parameters such a description has.

A preset is plain data: any field can be overridden one by one. Counting needs no arrays and no devices.
Knows nothing of how a layer is computed, of meshes or of optimizers.
"""

from __future__ import annotations

from typing import Any

from models.config import ModelConfig

_GPT: dict[str, Any] = {
    "positions": "learned",
    "norm": "layernorm",
    "activation": "gelu",
    "bias": True,
    "tied": True,
    "vocab": 50257,
}
_GPT2 = _GPT | {"context": 1024}
_GPT3 = _GPT | {"context": 2048}
_LLAMA3: dict[str, Any] = {
    "positions": "rope",
    "rope_theta": 500_000.0,
    "norm": "rmsnorm",
    "norm_epsilon": 1e-5,
    "activation": "swiglu",
    "vocab": 128256,
    "kv_heads": 8,
    "context": 8192,
}


def _long_context(factor: float) -> dict[str, Any]:
    """Llama 3.1 and 3.2 were trained on to 131072 tokens, with stretched rotary frequencies."""
    return {"context": 131072, "rope_scaling": {"factor": factor, "original_context": 8192}}


PRESETS: dict[str, dict[str, Any]] = {
    # Radford et al. 2019, table 2; the released weights.
    "gpt2": _GPT2 | {"layers": 12, "hidden": 768, "heads": 12},
    "gpt2-medium": _GPT2 | {"layers": 24, "hidden": 1024, "heads": 16},
    "gpt2-large": _GPT2 | {"layers": 36, "hidden": 1280, "heads": 20},
    "gpt2-xl": _GPT2 | {"layers": 48, "hidden": 1600, "heads": 25},
    # Brown et al. 2020 (arXiv 2005.14165), table 2.1. Its locally banded layers are dense here; the
    # vocabulary is GPT-2's, whose tokenizer the paper says it reuses.
    "gpt3-175b": _GPT3 | {"layers": 96, "hidden": 12288, "heads": 96},
    # Smith et al. 2022 (arXiv 2201.11990), section 3. The vocabulary is GPT-2's before Megatron's padding;
    # the paper prints no parameter count beyond "530B".
    "mt-nlg-530b": _GPT3 | {"layers": 105, "hidden": 20480, "heads": 128},
    # BigScience 2022 (arXiv 2211.05100), table 3; the vocabulary is 250680 padded to 250880, as released.
    "bloom-176b": {
        "layers": 70,
        "hidden": 14336,
        "heads": 112,
        "vocab": 250880,
        "context": 2048,
        "positions": "alibi",
        "embedding_norm": True,
        "norm": "layernorm",
        "activation": "gelu",
        "bias": True,
        "tied": True,
    },
    # Grattafiori et al. 2024 (arXiv 2407.21783), table 3, and the released configurations: 8b and 70b are
    # Llama 3.0, 405b is 3.1, 1b is 3.2.
    "llama3.2-1b": _LLAMA3
    | _long_context(32.0)
    | {"layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "tied": True},
    "llama3-8b": _LLAMA3 | {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336},
    "llama3-70b": _LLAMA3 | {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672},
    "llama3-405b": _LLAMA3 | _long_context(8.0) | {"layers": 126, "hidden": 16384, "heads": 128, "ffn": 53248},
}


def linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """The weight matrices of one block: name -> (input, output) size."""
    hidden, ffn = config.hidden, config.ffn_size
    queries = config.heads * config.dim_per_head
    keys = config.num_kv_heads * config.dim_per_head
    shapes = {
        "query": (hidden, queries),
        "key": (hidden, keys),
        "value": (hidden, keys),
        "output": (queries, hidden),
        "up": (hidden, ffn),
        "down": (ffn, hidden),
    }
    return shapes | {"gate": (hidden, ffn)} if config.activation == "swiglu" else shapes


def num_parameters(config: ModelConfig) -> int:
    """Every trainable number of the model, a tied output matrix counted once."""
    norm = config.hidden * (2 if config.norm == "layernorm" else 1)
    block = 2 * norm + sum(
        num_in * num_out + (num_out if config.bias else 0) for num_in, num_out in linear_shapes(config).values()
    )
    embedding = config.vocab * config.hidden
    if config.positions == "learned":
        embedding += config.context * config.hidden
    if config.embedding_norm:
        embedding += norm
    head = 0 if config.tied else config.vocab * config.hidden
    return embedding + config.layers * block + norm + head
