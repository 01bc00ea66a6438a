"""Plans and ledgers beside what XLA makes of the same steps, compiled for H100s that are not there.

    python -m benchmarks.plan_ledger [NAME...]    of RUNS; all take six minutes of CPU time

Bytes on the wire, FLOPs of matmuls and bytes of the state have to be equal, or to differ by what a cause accounts for
exactly; totals of memory, without what the driver and libraries hold, may be off by 8 %. Exits with 1 where they are
not. Needs no GPU, but what `pip install -e '.[plan]'` adds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.common import show
from trainer.config import Config
from trainer.description import resolve
from trainer.planner import load, plan
from trainer.planner.compiled import compile_step
from trainer.planner.show_compiled import UNITS, compared, verdict
from trainer.units import GIB

CONFIGS = Path(__file__).parents[1] / "configs"
_LLAMA_70B = ["model.preset=llama3-70b", "batch={global: 64, micro: 1, sequence: 8192}"]
_REFERENCE = "attention.implementation=reference"
"""With any but the kernels: its scores are what XLA has to find room for."""
_PALLAS = ["recompute=selective", "attention.implementation=pallas"]
RUNS: Mapping[str, tuple[str, list[str]]] = {
    "gpt2-124m on one": ("gpt2-124m", ["mesh={data: 1}", "batch.global=64"]),
    "gpt2-124m": ("gpt2-124m", []),
    "gpt2-124m ZeRO 0, float32": ("gpt2-124m", ["mesh={replica: 2, data: 4}", "zero.stage=0", "precision={}"]),
    "llama3.2-1b ZeRO 2": ("llama3.2-1b", []),
    "llama3.2-1b gpipe": (
        "llama3.2-1b",
        ["mesh={pipeline: 4, data: 2, tensor: 2}", "pipeline.schedule=gpipe", "batch.global=16"],
    ),
    "llama3-8b ZeRO 3": ("llama3-8b", ["mesh={data: 8}", "batch.global=16"]),
    "llama3-8b recompute full": ("llama3-8b", ["mesh={data: 8}", "batch.global=16", "recompute=full"]),
    "llama3-8b pallas": ("llama3-8b", ["mesh={data: 2, tensor: 4}", "batch.global=16", *_PALLAS]),
    "llama3-8b replica 16": ("llama3-8b", ["mesh={replica: 16, data: 8, tensor: 4}"]),
    "llama3-8b tensor 8, recompute none": (
        "llama3-8b",
        ["mesh={tensor: 8}", "batch.global=4", "zero.stage=1", "recompute=none"],
    ),
    "llama3-70b 1f1b, ZeRO 2, head last": (
        "llama3-8b",
        [*_LLAMA_70B, "mesh={pipeline: 4, data: 4, tensor: 8}", "zero.stage=2", "pipeline.head=last"],
    ),
    "llama3-70b interleaved, ZeRO 3": (
        "llama3-8b",
        [
            *_LLAMA_70B,
            "mesh={pipeline: 4, data: 8, tensor: 8}",
            "pipeline={schedule: interleaved_1f1b, virtual_stages: 4}",
        ],
    ),
    "bloom-176b": ("bloom-176b", []),
    "bloom-176b, 72 layers": ("bloom-176b", ["model.layers=72", f"pipeline.layers={[6] * 12}"]),
    "bloom-176b, 72 layers, interleaved": (
        "bloom-176b",
        [
            "model.layers=72",
            f"pipeline.layers={[2] * 36}",
            "pipeline.schedule=interleaved_1f1b",
            "pipeline.virtual_stages=3",
            "recompute=selective",
        ],
    ),
    "mt-nlg-530b": ("mt-nlg-530b", []),
    "mt-nlg-530b, 104 layers": ("mt-nlg-530b", ["model.layers=104"]),
    "mt-nlg-530b, keep inputs": ("mt-nlg-530b", ["pipeline.keep=inputs", "recompute=selective"]),
}
ALLOWED = 0.08


GROUPS = ("wire", "flops", "bytes")
Found = dict[str, Any]
"""See `trainer.planner.show_compiled.compared`."""


def main(names: list[str]) -> int:
    """Prints the table and all causes; how many runs have something unexplained, or a total that is off."""
    jax.config.update("jax_platforms", "cpu")
    found = {}
    for name in names or RUNS:
        found[name] = _measured(RUNS[name])
        print(f"{name}: done", file=sys.stderr)
    columns = ["config", "GPUs", *GROUPS, "planned GiB", "compiled", "off by", "seconds"]
    rows = [[name, *_row(config, one)] for name, (config, one) in found.items()]
    show("Traced and compiled, for H100s", columns, rows)
    for difference, of in _differences({name: one["ledger"] for name, (_, one) in found.items()}).items():
        print(f"{difference}\n    {'; '.join(of)}")
    wrong = [name for name, (_, one) in found.items() if not one["ledger"].get("equal")]
    off = [name for name, (_, one) in found.items() if abs(one["difference"]) > ALLOWED]
    print(f"Unexplained: {', '.join(wrong) or 'nothing'}. Off by more than {ALLOWED:.0%}: {', '.join(off) or 'none'}.")
    return len({*wrong, *off})


def _measured(run: tuple[str, list[str]]) -> tuple[Config, Found]:
    file, overrides = run
    attention = () if any(override in _PALLAS for override in overrides) else (_REFERENCE,)
    config, _ = resolve(Config.load(CONFIGS / f"{file}.yaml", [*attention, *overrides]))
    return config, compared(plan(config, "h100"), compile_step(config, load("h100")))


def _row(config: Config, found: Found) -> list[str]:
    total, ledger = found["total"], found["ledger"]
    return [
        f"{math.prod(config.mesh.sizes.values()):,}",
        *(_verdict(ledger[group]) if group in ledger else "not compared" for group in GROUPS),
        *(f"{total[whose] / GIB:.2f}" for whose in ("planned", "compiled")),
        f"{found['difference']:+.1%}",
        f"{sum(found['seconds'].values()):.0f}",
    ]


def _verdict(lines: list[Found]) -> str:
    if any(line["unexplained"] for line in lines):
        return "UNEXPLAINED"
    return "explained" if any(line["causes"] for line in lines) else "equal"


def _differences(ledgers: Mapping[str, Found]) -> dict[str, list[str]]:
    """What is not equal, and of which runs."""
    alike: dict[str, list[str]] = {}
    for name, ledger in ledgers.items():
        if "not_compared" in ledger:
            alike.setdefault(f"not compared: {ledger['not_compared']}", []).append(name)
        for group in UNITS:
            for line in ledger.get(group, []):
                if line["causes"] or line["unexplained"]:
                    alike.setdefault(f"{line['name']} {verdict(line, UNITS[group])}", []).append(name)
    return alike


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
