"""Stages compute what has to be computed, and no more: FLOPs that a device executes, against those that are of use.

    python -m benchmarks.pipeline_flops

Of use is a stage's share of the same step without pipeline: forward, backward, and what `recompute` does again; with
`keep: inputs`, the forward of the layers once more. Executed is what the busiest stage does, read from the traced step.
Exits with 1 where that is more than 2 % beyond the use and the schedule's bubble, unless the last stage has the whole
head: the second table shows why that is the slow one. Needs no devices.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from benchmarks.common import show
from benchmarks.pipeline_program import tick_loops
from sharding.pipeline.branch import LAYER
from sharding.pipeline.executor import Pipeline
from trainer.config import Config
from trainer.flops import flops
from trainer.pipeline import make_pipeline
from trainer.trace import Trace, trace_step

P = 4
MICRO, SEQUENCE, HIDDEN, VOCAB = 1, 128, 128, 2048  # the head costs as much as one of a stage's two layers
ALLOWED = 0.02
COLUMNS = ["schedule", "V", "M", "tensor", "keep", "recompute", "head", "bubble", "executed / useful", "at most"]


@dataclass(frozen=True)
class Case:
    """A Llama on four stages, two layers for each (virtual) one."""

    schedule: str = "1f1b"
    virtual: int = 1
    micro_batches: int = 32
    tensor: int = 1
    keep: str = "residuals"
    recompute: str = "none"
    head: str = "spread"

    def config(self, recompute: str, num_stages: int = P) -> Config:
        """Of the same model on another number of stages, too."""
        model = {"layers": 2 * P * self.virtual, "hidden": HIDDEN, "heads": 4, "vocab": VOCAB, "context": SEQUENCE}
        stages = {"schedule": self.schedule, "virtual_stages": self.virtual, "keep": self.keep, "head": self.head}
        return Config.from_dict(
            {
                "model": model,
                "mesh": {"pipeline": num_stages, "tensor": self.tensor},
                "pipeline": stages if num_stages > 1 else {},
                "batch": {"global": MICRO * self.micro_batches, "micro": MICRO, "sequence": SEQUENCE},
                "recompute": recompute,
            }
        )

    @cached_property
    def trace(self) -> Trace:
        return trace_step(self.config(self.recompute))

    @cached_property
    def pipeline(self) -> Pipeline:
        config = self.config(self.recompute)
        pipeline = make_pipeline(config, config.mesh.sizes)
        assert pipeline is not None, f"there are {P} stages"
        return pipeline

    @property
    def executed(self) -> list[int]:
        """FLOPs of a device of each stage."""
        return [flops(self.trace.program, shares) for shares in self.trace.shares]

    @property
    def useful(self) -> float:
        """FLOPs of each device, if the stages shared the work of one evenly."""
        useful = self._on_one_stage(self.recompute)
        if self.keep == "inputs":
            head = 3 * 2 * MICRO * self.micro_batches * SEQUENCE * HIDDEN * VOCAB // self.tensor
            useful += (self._on_one_stage("none") - head) // 3
        return useful / P

    def _on_one_stage(self, recompute: str) -> int:
        trace = trace_step(self.config(recompute, num_stages=1))
        return flops(trace.program, trace.shares[0])

    @property
    def limit(self) -> float:
        """What `executed / useful` may be."""
        return (1 + ALLOWED) * (1 + self.pipeline.schedule.bubble())

    @property
    def full_tick(self) -> list[int]:
        """FLOPs of a device of each stage in a steady tick in which it does all that it ever does."""
        phases = self.pipeline.schedule.phases
        steady = next(index for index, phase in enumerate(phases) if phase.forward and phase.backward)
        tick = tick_loops(self.trace.program)[steady].params["jaxpr"]
        return [flops(tick, _at_work(shares)) for shares in self.trace.shares]


CASES = [
    Case(),
    Case(micro_batches=8),
    Case(tensor=2),
    Case(recompute="full"),
    Case(keep="inputs"),
    Case(keep="inputs", recompute="selective"),
    Case("interleaved_1f1b", 2),
    Case("interleaved_1f1b", 2, micro_batches=30),
    Case("interleaved_1f1b", 2, keep="inputs"),
    Case("gpipe"),
    Case(head="last"),
    Case("interleaved_1f1b", 2, keep="inputs", head="last"),
]


def _at_work(shares: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """The shares of a tick in which a stage does all that it ever does; how many layers it has stays."""
    return {name: share if name == LAYER else Fraction(share > 0) for name, share in shares.items()}


def _row(case: Case) -> tuple[list[str], bool]:
    """The cells, and whether the stages execute no more than they may."""
    ratio = max(case.executed) / case.useful
    is_bound = case.head == "spread"
    layout = case.schedule, case.virtual, case.micro_batches, case.tensor, case.keep, case.recompute, case.head
    bubble = f"{case.pipeline.schedule.bubble():.1%}"
    cells = [*map(str, layout), bubble, f"{ratio:.3f}", f"{case.limit:.3f}" if is_bound else "-"]
    return cells, ratio <= case.limit or not is_bound


def main() -> int:
    """Prints the tables; how many cases execute more than they may."""
    rows = [_row(case) for case in CASES]
    show(f"FLOPs of the busiest of {P} stages, executed / useful", COLUMNS, [cells for cells, _ in rows])
    ticks = {head: Case(head=head).full_tick for head in ("spread", "last")}
    show(
        "MFLOP of each stage in a full steady tick of 1f1b, which lasts as long as the slowest",
        ["head", *(f"stage {stage}" for stage in range(P)), "slowest / mean"],
        [
            [head, *(f"{n / 1e6:,.1f}" for n in tick), f"{max(tick) / (sum(tick) / len(tick)):.2f}"]
            for head, tick in ticks.items()
        ],
    )
    failed = sum(not fits for _, fits in rows)
    print(f"{failed} cases execute more than they may." if failed else "No stage executes more than it may.")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
