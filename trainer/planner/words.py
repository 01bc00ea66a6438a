"""What the numbers of a plan are, in words that all who show one use."""

from __future__ import annotations

from trainer.planner.plan import Plan
from trainer.planner.ranking import MARGIN
from trainer.units import GIB

# What each kind of bytes is, as `trainer.planner.memory` counts it.
MEMORY = {
    "weights": "copies that layers compute with",
    "gradients": "their sum, float32, and those of a micro-batch",
    "master": "float32 weights",
    "optimizer": "moments",
    "activations": "kept for backward, and those of the layer at work",
    "logits": "a chunk of tokens' logits and their gradient",
    "gathered": "weights of the part at work, under ZeRO 3",
    "pipeline": "messages between stages",
    "collectives": "copies of what is reduced or gathered",
    "overhead": "driver, libraries, NCCL: outside of what JAX takes",
}
SECONDS = {
    "matmul": "matrices of layers and head",
    "attention": "scores and their sums of values",
    "elementwise": "norms, activation functions, residuals",
    "accumulation": "adding up gradients of micro-batches",
    "optimizer": "the update",
    "tensor": "tensor parallelism's exchanges, not hidden",
    "stages": "activations between stages, not hidden",
    "data": "weights and gradients over data and replica, not hidden",
    "host": "to the host, not hidden, and back: activations, streamed layers",
    "host_update": "the update of what is offloaded, and its way: not hidden",
    "bubble": "waiting for other stages",
}
HOST_UPDATE = {
    "down": "gradients to the host",
    "update": "host memory, read and written",
    "up": "new weights to the GPU",
    "nvme": "disks, read and written",
}
ASSUMED = "Rates of the GPU's file, which are a DGX node's by data sheets: put in those of your hosts."


def room(made: Plan) -> str:
    """What the total is judged by."""
    return f"{made.limit_bytes / GIB:.1f} of the GPU's {made.memory_bytes / GIB:.1f} GiB may be filled"


def near(made: Plan) -> str | None:
    """A warning, where it fits and may yet not: what the compiler sets aside is known to within a margin."""
    if not made.fits or made.fits_surely:
        return None
    return f"less than {MARGIN:.0%} is left, which plans have been wrong by: --compile tells what XLA sets aside"


def fullest(made: Plan) -> str:
    """Which stage the plan's memory is that of."""
    if len(set(made.stages)) == 1:
        return f"all {len(made.stages)} stages hold alike: they run one program"
    return f"stage {made.worst_stage} of {len(made.stages)} is the fullest"
