"""Every byte on the wire is on purpose: what each kind of parallelism promises to send, against the traced step.

    python -m benchmarks.wire

Payload per device and step, in elements (a gathered array, an array before its reduction, what goes to a neighbour),
for every ZeRO stage, with and without accumulation, tensor parallelism and pipelines. Exits with 1 where the program
sends anything else. Needs no devices: the step is traced, not compiled.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from rich.table import Table

from models.presets import linear_shapes
from sharding.mesh import AXES
from trainer.config import Config
from trainer.tables import make_table, wide_console
from trainer.trace import Trace, trace_step
from trainer.wire import Kind, wire

LEGEND = """\
W  matrices of the blocks, on one device       x  activations of a micro-batch: sequences · tokens · hidden
E  embedding table;  H  head, likewise         T  tokens of a micro-batch: sequences · tokens
n  norms of the blocks;  f  the last norm      L  layers, on one device;  M  micro-batches
N, t  devices along `data`, along `tensor`     P  pipeline stages;  V  virtual ones on each"""

MICRO, SEQUENCE, DEPTH = 2, 48, 3
COMPUTE, REDUCE = "bfloat16", "float32"
DATA, TENSOR, PIPELINE = ("data",), ("tensor",), ("pipeline",)
TEXTS, NUMBERS = ("kind", "axes", "dtype", "formula"), ("promised", "counted", "bytes on the link")
# What recomputing a block in the backward pass sends again, in passes of x: (all-gathers, reduce-scatters).
AGAIN = {"none": (0, 0), "selective": (2, 0), "full": (2, 1)}
Line = tuple[Kind, tuple[str, ...], str]
"""Kind, axes and dtype: what one line of the table adds up."""
Terms = Mapping[str, int]
"""What is added up: its name -> its elements."""


@dataclass(frozen=True)
class Case:
    """A Llama whose sizes divide and differ, three layers for each (virtual) stage, data 4, 2 x 48 tokens at a time."""

    stage: int
    accumulation: int = 1
    tensor: int = 1
    replica: int = 1
    recompute: str = "selective"
    pipeline: int = 1
    virtual: int = 1
    keep: str = "residuals"
    head: str = "spread"
    place: int = 0
    """Of the pipeline stage whose devices are looked at."""

    @property
    def config(self) -> Config:
        sizes = {"hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 144, "vocab": 320, "context": SEQUENCE}
        schedule = "1f1b" if self.virtual == 1 else "interleaved_1f1b"
        stages = {"schedule": schedule, "virtual_stages": self.virtual, "keep": self.keep, "head": self.head}
        return Config.from_dict(
            {
                "model": {"layers": DEPTH * self.pipeline * self.virtual} | sizes,
                "mesh": {"pipeline": self.pipeline, "replica": self.replica, "data": 4, "tensor": self.tensor},
                "pipeline": stages if self.pipeline > 1 else {},
                "zero": {"stage": self.stage},
                "batch": {"global": self.replica * 4 * MICRO * self.accumulation, "micro": MICRO, "sequence": SEQUENCE},
                "precision": {"compute": COMPUTE, "reduce": REDUCE},
                "recompute": self.recompute,
            }
        )

    @property
    def layers(self) -> int:
        """On one device."""
        return DEPTH * self.virtual

    @property
    def is_spread(self) -> bool:
        """Embedding and head are cut over all stages, or there is but one."""
        return self.head == "spread" or self.pipeline == 1

    @property
    def looks_up(self) -> bool:
        """This stage takes part in looking up the embedding."""
        return self.is_spread or self.place == 0

    @property
    def has_loss(self) -> bool:
        """This stage takes part in the head's work."""
        return self.is_spread or self.place == self.pipeline - 1

    def axes(self, *names: str) -> tuple[str, ...]:
        """Those of these mesh axes that have more than one device, in the order of the mesh."""
        sizes = self.config.mesh.sizes
        return tuple(axis for axis in AXES if axis in names and sizes[axis] > 1)


CASES = [
    *(Case(*case) for case in itertools.product(range(4), (1, 4), (1, 2))),
    *(Case(stage, 4, 2, recompute=recompute) for stage in (1, 3) for recompute in ("none", "full")),
    *(Case(stage, 4, tensor, replica=2) for stage in (0, 1, 3) for tensor in (1, 2)),
]
PIPELINES = [
    *(Case(stage, 4, 2, pipeline=2) for stage in range(4)),
    *(Case(stage, 4, 2, pipeline=2, head="last", place=place) for stage in range(4) for place in (0, 1)),
    *(Case(stage, 8, 1, pipeline=4, virtual=2) for stage in (0, 3)),
    *(Case(3, 8, 1, pipeline=4, virtual=2, head="last", place=place) for place in (0, 1, 3)),
    *(Case(stage, 4, 2, pipeline=4, keep="inputs") for stage in (1, 3)),
    Case(3, 4, 2, pipeline=2, virtual=2, keep="inputs", head="last", place=1),
]
# Heading -> what stands there, of a case.
LAYOUT = {"ZeRO": "stage", "M": "accumulation", "tensor": "tensor"}
GROUPS = LAYOUT | {"replica": "replica", "recompute": "recompute"}
STAGES = LAYOUT | {"P": "pipeline", "V": "virtual", "keep": "keep", "head": "head", "stage": "place"}
TABLES: list[tuple[str, Mapping[str, str], Sequence[Case]]] = [
    ("Payload in elements, per device and step", GROUPS, CASES),
    ("With pipelines", STAGES, PIPELINES),
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
    trace = _traced(dataclasses.replace(case, place=0))
    for transfer in wire(trace.program, trace.shares[case.place]):
        if transfer.elements > 1:
            line = transfer.kind, transfer.axes, transfer.dtype
            elements, sent = lines.get(line, (0, 0.0))
            lines[line] = elements + transfer.count * transfer.elements, sent + transfer.link_bytes
    return lines


@cache
def _traced(case: Case) -> Trace:
    return trace_step(case.config)


def _weights(case: Case) -> Iterator[tuple[Line, str, int]]:
    """Weights and gradients.

    Stage 3 gathers a block's weights in the forward pass and again in the backward pass, and once more for a stage that
    is run again before it (`keep: inputs`): for units that exist, however many ticks there are. What is outside of the
    blocks it gathers once: a lookup's gradient needs no table, and the head's is made in the forward pass, with the
    loss.
    Over the axes that a weight is replicated on its gradient is summed once a step, and of the shard alone where ZeRO
    has scattered it: over `replica`; for norms, which work on this device's part of the sequence, over `tensor`; for
    what stages share, over `pipeline`.
    """
    model, M, N = case.config.model, case.accumulation, case.config.mesh.data
    W = case.layers * sum(rows * columns for rows, columns in linear_shapes(model).values()) // case.tensor
    table = model.vocab * model.hidden // case.tensor // (case.pipeline if case.is_spread else 1)
    blocks = {"W": W, "n": 2 * case.layers * model.hidden}
    embedding, head = {"E": table}, {"H": table, "f": model.hidden}
    used = (embedding if case.looks_up else {}) | (head if case.has_loss else {})
    if case.stage == 3:
        times = 3 if case.keep == "inputs" else 2
        gathered = {f"{times}{name}": times * elements for name, elements in blocks.items()}
        yield ("all_gather", DATA, COMPUTE), *_sum(gathered | used, M, "M")
    elif case.stage > 0:
        yield ("all_gather", DATA, COMPUTE), *_sum(blocks | embedding | head)
    if case.stage >= 2:
        yield ("reduce_scatter", DATA, REDUCE), *_sum(blocks | used, M, "M")
    elif case.stage == 1:
        yield ("reduce_scatter", DATA, REDUCE), *_sum(blocks | embedding | head)
    for name, elements in (blocks | embedding | head).items():
        if axes := case.axes(*_replicated(case, name)):
            whole = case.stage == 0
            yield ("all_reduce", axes, REDUCE), name if whole else f"{name}/N", elements if whole else elements // N


def _replicated(case: Case, name: str) -> Iterator[str]:
    """The mesh axes that a weight is replicated over."""
    yield "replica"
    if case.stage == 0:
        yield "data"
    if name in ("n", "f"):
        yield "tensor"
    if name == "f" or (name in ("E", "H") and not case.is_spread):
        yield "pipeline"


def _activations(case: Case) -> Iterator[tuple[Line, str, int]]:
    """Tensor and sequence parallelism, and pipelines.

    Over `tensor`: per block two all-gathers and two reduce-scatters forward, the same backward; one of each for the
    embedding and for the head. Cross entropy shares each token's largest logit, sum of exponentials and target logit.
    Over `pipeline`: an activation in every tick that has forwards, and a cotangent in every one that has backwards.
    Where the vocabulary is cut over the stages: sums of a micro-batch's embedding and of its gradient, of what goes
    into the head (zeros but from the last stage) and of its gradient.
    """
    model, L, M, T = case.config.model, case.layers, case.accumulation, MICRO * SEQUENCE
    x = T * model.hidden
    if case.tensor > 1:
        ends = case.looks_up + case.has_loss
        gathers, scatters = (4 + again + (2 if case.keep == "inputs" else 0) for again in AGAIN[case.recompute])
        yield ("all_gather", TENSOR, COMPUTE), *_sum({f"{gathers}L": gathers * L, f"{ends}": ends}, M * x, "M·x")
        yield ("reduce_scatter", TENSOR, COMPUTE), *_sum({f"{scatters}L": scatters * L, f"{ends}": ends}, M * x, "M·x")
    if case.has_loss and (axes := case.axes("tensor", "pipeline" if case.is_spread else "")):
        yield ("all_reduce", axes, REDUCE), "3M·T", 3 * M * T
    if case.pipeline > 1:
        ticks = case.virtual * M + case.pipeline - 1
        yield ("permute", PIPELINE, COMPUTE), "2(V·M + P - 1)x/t", 2 * ticks * x // case.tensor
        if case.is_spread:
            yield ("all_reduce", PIPELINE, COMPUTE), "4M·x/t", 4 * M * x // case.tensor


def _sum(terms: Terms, times: int = 1, name: str = "") -> tuple[str, int]:
    """The formula of a sum, and what it makes."""
    formula = " + ".join(term for term, elements in terms.items() if elements)
    return f"{name}({formula})" if name else formula, times * sum(terms.values())


def _table(title: str, layout: Mapping[str, str], cases: Sequence[Case]) -> tuple[Table, int]:
    """The table of these cases, and how many of its lines differ."""
    table = make_table(title, [*layout, *TEXTS], NUMBERS)
    differing = 0
    for case in cases:
        expected, found = promised(case), counted(case)
        cells = [str(getattr(case, name)) for name in layout.values()]
        for line in sorted(expected.keys() | found.keys()):
            formula, elements = expected.get(line, ("nothing", 0))
            actual, sent = found.get(line, (0, 0.0))
            kind, axes, dtype = line
            cells += [kind, " x ".join(axes), dtype, formula, f"{elements:,}", f"{actual:,}", f"{sent:,.0f}"]
            table.add_row(*cells, style=None if actual == elements else "bold red")
            differing += actual != elements
            cells = [""] * len(layout)
        table.add_section()
    return table, differing


def main() -> int:
    """Prints the tables; how many lines differ."""
    console = wide_console()
    differing = 0
    for title, layout, cases in TABLES:
        table, more = _table(title, layout, cases)
        console.print(table)
        differing += more
    console.print(LEGEND, highlight=False)
    console.print(f"{differing} lines differ." if differing else "Every line is as promised.")
    return differing


if __name__ == "__main__":
    sys.exit(main() > 0)
