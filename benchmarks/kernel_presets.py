"""Flash attention's kernels as every preset asks for them, compiled for each GPU of a data centre.

    nice python -m benchmarks.kernel_presets [WORD...]    needs what `pip install -e '.[plan]'` adds, and no GPU

Of all kernels, or of those that have every WORD in their names, as in `h100 d_keys llama3-8b`. A kernel is made for a
head dim, for so many query heads that share a key head, and for what masks and biases scores; how many heads a device
has is up to the mesh. Presets that are alike in that share a compile, of the most heads and the longest context among
them. What is looked at is what kernel_compile looks at, and so is the exit code.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

from benchmarks.kernel_compile import all_wrong, compile_all, having, require_compiler
from models.config import ModelConfig
from models.presets import PRESETS
from pallas_kernels.flash.tiles import tiles_for
from trainer.bench.probe import FEATURES, KERNELS, Job

GPUS = ("a100", "h100", "h200", "b200")


def jobs() -> dict[str, Job]:
    """By GPU, kernel and the presets that ask for it."""
    alike: dict[tuple[int, int, str], dict[str, ModelConfig]] = defaultdict(dict)
    for name, preset in PRESETS.items():
        model = ModelConfig(**preset)
        alike[model.dim_per_head, model.heads // model.num_kv_heads, _features(model)][name] = model
    return {
        f"{gpu} {kernel} {', '.join(models)}": _job(gpu, kernel, *shape, list(models.values()))
        for (shape, models), gpu, kernel in product(alike.items(), GPUS, KERNELS)
    }


def _features(model: ModelConfig) -> str:
    """Training packs documents, whatever the model."""
    has = {
        "causal": True,
        "segments": True,
        "alibi": model.positions == "alibi",
        "window": model.window is not None,
        "soft_cap": model.soft_cap is not None,
    }
    return " ".join(feature for feature in FEATURES if has[feature])


def _job(gpu: str, kernel: str, head_dim: int, sharing: int, features: str, models: list[ModelConfig]) -> Job:
    """Sequences end one token before the context does, so that no tile ends there."""
    heads, length = max(model.heads for model in models), max(model.context for model in models) - 1
    return Job(
        gpu,
        kernel,
        getattr(tiles_for(gpu, head_dim, "bfloat16"), kernel),
        head_dim,
        features=features,
        lengths=(length, length),
        heads=heads,
        kv_heads=heads // sharing,
        spills=False,
    )


def main(words: Sequence[str]) -> int:
    """How many kernels are not as they should be."""
    named = having(words, jobs())
    return len(all_wrong(named, compile_all("Kernels of flash attention, by preset", named)))


if __name__ == "__main__":
    require_compiler()
    sys.exit(main(sys.argv[1:]) > 0)
