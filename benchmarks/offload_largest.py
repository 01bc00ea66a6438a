"""The largest model that one GPU trains, by what is offloaded: compiled, beside what DeepSpeed has published.

    python -m benchmarks.offload_largest [CARD...]    of LIMITS; needs what `pip install -e '.[plan]'` adds, and no GPU

Llama's shapes in bfloat16 with AdamW, recompute full, the kernels of attention, a sequence of 2,048 tokens and 32,000
words. A shape has between half and twice its usual layers, and the host 1.5 TB. Closed forms choose; the model is
compiled for an H100 that is not there, and takes or loses layers until it fits and one more would not. The limit is on
XLA's buffers: a card's memory without the 2 GB that driver and libraries hold. There is no H100 with 24 GB: the same
program is held against less. Then the device's bytes of one width with 16, 32 and 64 layers. Exits with 1 where these
differ, or a model does not fit.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from benchmarks.common import show
from models.presets import num_parameters
from trainer.config import Config
from trainer.off_device import OffDevice, off_device
from trainer.planner.arrangement import Arrangement
from trainer.planner.compiled import CompiledStep, compile_step
from trainer.planner.gpu import load
from trainer.planner.kept import bytes_on_host
from trainer.planner.memory import stage_memory
from trainer.planner.sizes import block
from trainer.program import plan_layouts

H100 = load("h100")
LIMITS = {"24": 24 * 2**30 - H100.reserved_bytes, "80": H100.memory_bytes - H100.reserved_bytes}
"""Bytes for XLA on a card of so many GB."""
HOST = 1.5e12
SETTINGS = {
    "none": [],
    "optimizer": ["offload={optimizer: host}"],
    "optimizer, activations": ["offload={optimizer: host, activations: host}"],
    "and parameters": ["zero.stage=3", "offload={optimizer: host, activations: host, parameters: host}"],
    "and parameters, optimizer on NVMe": [
        "zero.stage=3",
        "offload={optimizer: nvme, path: /nvme, activations: host, parameters: host}",
    ],
    "and parameters on NVMe": [
        "zero.stage=3",
        "offload={optimizer: nvme, path: /nvme, activations: host, parameters: nvme}",
    ],
}
PUBLISHED = [
    ["none, PyTorch", "1.4", "V100, 32 GB", "ZeRO-Offload, arXiv 2101.06840"],
    ["ZeRO-Offload", "13", "V100, 32 GB", "arXiv 2101.06840"],
    ["ZeRO-3 Offload", "40", "V100, 32 GB, host 1.5 TB", "DeepSpeed's blog, March 2021"],
]
DEPTHS = (16, 32, 64)


@dataclass(frozen=True)
class Shape:
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    layers: int
    """Of the model that it is known from."""


SHAPES = (
    Shape(2048, 32, 8, 8192, 16),
    Shape(3072, 24, 8, 8192, 28),
    Shape(4096, 32, 8, 14336, 32),
    Shape(5120, 40, 40, 13824, 40),
    Shape(8192, 64, 8, 28672, 80),
    Shape(16384, 128, 8, 53248, 126),
)


def config(shape: Shape, layers: int, setting: str) -> Config:
    model = {"layers": layers, "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads}
    tree = {
        "model": model | {"ffn": shape.ffn, "vocab": 32000, "context": 2048},
        "batch": {"global": 1, "micro": 1, "sequence": 2048},
        "precision": {"compute": "bfloat16"},
        "recompute": {"policy": "full"},
        "attention": {"implementation": "pallas"},
    }
    return Config.from_dict(tree, SETTINGS[setting]).resolve(1)


def planned(asked: Config) -> float:
    """Bytes of XLA's buffers, by closed forms."""
    memory = stage_memory(Arrangement.of(asked), H100)[0]
    return memory.total - memory.overhead


def elsewhere(asked: Config) -> OffDevice:
    arrangement = Arrangement.of(asked)
    activations = asked.model.layers * bytes_on_host(arrangement, block(asked.model, 1))
    return off_device(asked, plan_layouts(asked, asked.mesh.sizes), int(activations))


def deepest(shape: Shape, setting: str, limit: float) -> int:
    """Layers with which it fits by closed forms; 0 where there would have to be fewer than half of the usual."""

    def is_too_deep(layers: int) -> bool:
        asked = config(shape, layers, setting)
        return planned(asked) > limit or elsewhere(asked).host > HOST

    depths = range(shape.layers // 2, 2 * shape.layers + 1)
    fitting = bisect.bisect_left(depths, True, key=is_too_deep)
    return depths[fitting - 1] if fitting else 0


def fitted(shape: Shape, layers: int, setting: str, limit: float) -> CompiledStep:
    """Compiled, with as many layers more or less as it takes to fit, and not one more."""
    of_layer = planned(config(shape, layers + 1, setting)) - planned(config(shape, layers, setting))
    while True:
        step = compile_step(config(shape, layers, setting), H100)
        more = min(int((limit - step.total) // of_layer) if of_layer else 0, 2 * shape.layers - layers)
        if more == 0 or elsewhere(config(shape, layers + more, setting)).host > HOST:
            return step
        layers += more


def largest(setting: str, limit: float) -> CompiledStep:
    """Of the model with most parameters."""
    depths = {shape: layers for shape in SHAPES if (layers := deepest(shape, setting, limit))}
    sizes = {shape: num_parameters(config(shape, layers, setting).model) for shape, layers in depths.items()}
    best: CompiledStep | None = None
    for shape in sorted(sizes, key=lambda shape: -sizes[shape]):
        if best and num_parameters(best.program.config.model) >= sizes[shape]:
            break
        step = fitted(shape, depths[shape], setting, limit)
        models = [one.program.config.model for one in (step, best) if one]
        if num_parameters(models[0]) == max(map(num_parameters, models)):
            best = step
    assert best, "nothing fits"
    return best


def rows(cards: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Of the table, and whether each fits."""
    for card in cards:
        for setting in SETTINGS:
            step = largest(setting, LIMITS[card])
            away, model = elsewhere(step.program.config), step.program.config.model
            fits = step.total <= LIMITS[card] and away.host <= HOST
            sizes = step.state, step.temporary, step.total, away.host, away.nvme
            shape = f"{model.layers} x {model.hidden:,}"
            billions = f"{num_parameters(model) / 1e9:.1f}"
            yield [f"{card} GB, {setting}", billions, shape, *(f"{size / 1e9:.1f}" for size in sizes)], fits


def main() -> int:
    """Prints the tables; how much of them is not as it should be."""
    jax.config.update("jax_platforms", "cpu")
    found = list(rows(sys.argv[1:] or list(LIMITS)))
    columns = [
        "on the host",
        "billion parameters",
        "layers x hidden",
        "state GB",
        "temporary",
        "in all",
        "host GB",
        "NVMe",
    ]
    show("The largest Llama that one GPU trains, 1 x 2,048 tokens", columns, [row for row, _ in found])
    show("Published", ["", "billion parameters", "GPU", "source"], PUBLISHED)
    steps = [compile_step(config(SHAPES[2], layers, "and parameters"), H100) for layers in DEPTHS]
    depths = [
        [f"{layers}", *(f"{size:,}" for size in (step.state, step.temporary, step.host))]
        for layers, step in zip(DEPTHS, steps, strict=True)
    ]
    show("Bytes of a device by depth, hidden 4,096, all offloaded", ["layers", "state", "temporary", "host"], depths)
    totals = [step.total for step in steps]
    return sum(not fits for _, fits in found) + (max(totals) > 1.001 * min(totals))


if __name__ == "__main__":
    sys.exit(main() > 0)
