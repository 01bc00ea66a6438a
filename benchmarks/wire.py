"""Every byte on the wire is on purpose: what ZeRO and tensor parallelism promise to send, against the traced step.

    python -m benchmarks.wire

Payload per device and step, in elements (a gathered array, an array before its reduction), for every ZeRO stage, with
and without accumulation and tensor parallelism. Exits with 1 where the program sends anything else. Needs no devices:
the step is traced, not compiled.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from models.presets import linear_shapes
from trainer.config import Config
from trainer.trace import trace_step
from trainer.wire import Kind, wire

LEGEND = """\
W  matrices of the blocks, on one device of `tensor`     x  activations of a micro-batch: sequences · tokens · hidden
E  embedding table and head, likewise                    T  tokens of a micro-batch: sequences · tokens
n  norms of the blocks;  f  the last norm                L  layers;  M  micro-batches;  N  devices along `data`"""

MICRO, SEQUENCE = 2, 48
COMPUTE, REDUCE = "bfloat16", "float32"
DATA, TENSOR = ("data",), ("tensor",)
LAYOUT = "ZeRO", "M", "tensor", "replica", "recompute"
TEXTS, NUMBERS = ("kind", "axes", "dtype", "formula"), ("promised", "counted", "bytes on the link")
# What recomputing a block in the backward pass sends again, in passes of x: (all-gathers, reduce-scatters).
AGAIN = {"none": (0, 0), "selective": (2, 0), "full": (2, 1)}

Line = tuple[Kind, tuple[str, ...], str]
"""Kind, axes and dtype: what one line of the table adds up."""


@dataclass(frozen=True)
class Case:
    """Three layers of a Llama whose sizes divide and differ, on replica x data 4 x tensor, 2 x 48 tokens at a time."""

    stage: int
    accumulation: int = 1
    tensor: int = 1
    replica: int = 1
    recompute: str = "selective"

    @property
    def config(self) -> Config:
        sizes = {"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 144, "vocab": 320, "context": SEQUENCE}
        return Config.from_dict(
            {
                "model": sizes,
                "mesh": {"replica": self.replica, "data": 4, "tensor": self.tensor},
                "zero": {"stage": self.stage},
                "batch": {"global": self.replica * 4 * MICRO * self.accumulation, "micro": MICRO, "sequence": SEQUENCE},
                "precision": {"compute": COMPUTE, "reduce": REDUCE},
                "recompute": self.recompute,
            }
        )


CASES = [
    *(Case(*case) for case in itertools.product(range(4), (1, 4), (1, 2))),
    *(Case(stage, 4, 2, recompute=recompute) for stage in (1, 3) for recompute in ("none", "full")),
    *(Case(stage, 4, tensor, replica=2) for stage in (0, 1, 3) for tensor in (1, 2)),
]


def promised(case: Case) -> dict[Line, tuple[str, int]]:
    """Line -> its formula and elements; scalars (counted tokens, loss, gradient norm) are left out."""
    lines: dict[Line, tuple[str, int]] = {}
    for line, formula, elements in (*_weights(case), *_activations(case)):
        before, total = lines.get(line, ("", 0))
        lines[line] = (f"{before} + {formula}" if before else formula, total + elements)
    return lines


def counted(case: Case) -> dict[Line, tuple[int, float]]:
    """Line -> its elements in the traced program, and the bytes that each device puts on the link for them."""
    lines: dict[Line, tuple[int, float]] = {}
    for transfer in wire(trace_step(case.config).program):
        if transfer.elements > 1:
            line = transfer.kind, transfer.axes, transfer.dtype
            elements, sent = lines.get(line, (0, 0.0))
            lines[line] = elements + transfer.count * transfer.elements, sent + transfer.link_bytes
    return lines


def _weights(case: Case) -> Iterator[tuple[Line, str, int]]:
    """Weights and gradients.

    Stage 3 gathers a block's weights in the forward pass and again in the backward pass. What is outside of the blocks
    it gathers once: a lookup's gradient needs no table, and the head's is made in the forward pass, with the loss.
    Over the axes that a weight is replicated on its gradient is summed once a step, and of the shard alone where ZeRO
    has scattered it: over `replica`, and for norms, which work on this device's part of the sequence, over `tensor`.
    """
    model, M, N = case.config.model, case.accumulation, case.config.mesh.data
    W = model.layers * sum(rows * columns for rows, columns in linear_shapes(model).values()) // case.tensor
    E = 2 * model.vocab * model.hidden // case.tensor
    n, f = 2 * model.layers * model.hidden, model.hidden
    replica = ("replica",) if case.replica > 1 else ()
    tensor = TENSOR if case.tensor > 1 else ()
    if case.stage == 0:
        yield ("all_reduce", (*replica, *DATA), REDUCE), "W + E", W + E
        yield ("all_reduce", (*replica, *DATA, *tensor), REDUCE), "n + f", n + f
        return
    if case.stage == 3:
        yield ("all_gather", DATA, COMPUTE), "M(2W + 2n + E + f)", M * (2 * W + 2 * n + E + f)
    else:
        yield ("all_gather", DATA, COMPUTE), "W + E + n + f", W + E + n + f
    if case.stage == 1:
        yield ("reduce_scatter", DATA, REDUCE), "W + E + n + f", W + E + n + f
    else:
        yield ("reduce_scatter", DATA, REDUCE), "M(W + E + n + f)", M * (W + E + n + f)
    if replica:
        yield ("all_reduce", replica, REDUCE), "(W + E)/N", (W + E) // N
    if replica or tensor:
        yield ("all_reduce", (*replica, *tensor), REDUCE), "(n + f)/N", (n + f) // N


def _activations(case: Case) -> Iterator[tuple[Line, str, int]]:
    """Tensor and sequence parallelism.

    Per block two all-gathers and two reduce-scatters forward, the same backward; one of each for the embedding and for
    the head. Cross entropy shares each token's largest logit, sum of exponentials and target logit.
    """
    if case.tensor == 1:
        return
    model, M = case.config.model, case.accumulation
    L, T = model.layers, MICRO * SEQUENCE
    x = T * model.hidden
    gathers, scatters = (4 + again for again in AGAIN[case.recompute])
    yield ("all_gather", TENSOR, COMPUTE), f"M·x({gathers}L + 2)", M * x * (gathers * L + 2)
    yield ("reduce_scatter", TENSOR, COMPUTE), f"M·x({scatters}L + 2)", M * x * (scatters * L + 2)
    yield ("all_reduce", TENSOR, REDUCE), "3M·T", 3 * M * T


def main() -> int:
    """Prints the table; how many lines differ."""
    table = Table(title="Payload in elements, per device and step", box=box.SIMPLE_HEAD)
    for heading in (*LAYOUT, *TEXTS, *NUMBERS):
        table.add_column(heading, no_wrap=True, justify="right" if heading in NUMBERS else "left")
    differing = 0
    for case in CASES:
        expected, found = promised(case), counted(case)
        layout = [str(case.stage), str(case.accumulation), str(case.tensor), str(case.replica), case.recompute]
        for line in sorted(expected.keys() | found.keys()):
            formula, elements = expected.get(line, ("nothing", 0))
            actual, sent = found.get(line, (0, 0.0))
            kind, axes, dtype = line
            cells = [*layout, kind, " x ".join(axes), dtype, formula, f"{elements:,}", f"{actual:,}", f"{sent:,.0f}"]
            table.add_row(*cells, style=None if actual == elements else "bold red")
            differing += actual != elements
            layout = [""] * len(layout)
        table.add_section()
    console = Console()
    if not console.is_terminal:
        console.width = 170  # a pipe has no width, and rich would cut at 80
    console.print(table)
    console.print(LEGEND, highlight=False)
    console.print(f"{differing} lines differ." if differing else "Every line is as promised.")
    return differing


if __name__ == "__main__":
    sys.exit(main() > 0)
