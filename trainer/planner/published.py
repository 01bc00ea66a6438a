"""Runs that others published, as arrangements: what their tables say, and by one rule what they leave open.

A table is a CSV file with the columns of `published_runs.csv`. What a run did besides is told by its row's facts (GPU,
ZeRO, recomputation), never by its name; by its source, only what network it had.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from models.config import ModelConfig
from models.recompute import RecomputePolicy
from trainer.divisors import divisors
from trainer.errors import ConfigError
from trainer.planner import gpu as gpus
from trainer.planner.arrangement import BYTES, Arrangement
from trainer.planner.estimate import Estimate, estimate
from trainer.planner.flow import asynchronous
from trainer.planner.gpu import Gpu
from trainer.planner.practice import MEGATRON_2021, MEGATRON_2022, MEGATRON_CORE, MEGATRON_DEEPSPEED, Practice
from trainer.units import GIB

RUNS = Path(__file__).parent / "published_runs.csv"
OUT_OF_MEMORY = "OOM"
MOST = 1e9
"""That any number in a table may be."""
BEFORE_HOPPER = ("v100", "a100")
PRECISIONS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
POLICIES: tuple[RecomputePolicy, ...] = ("none", "selective", "full")
MICRO_BATCHES = (1, 2, 4, 8, 16)
"""That are tried where a row does not say."""
NETWORKS = {"BLOOM": 50e9 / 8}
"""A word of the source -> bytes/s of the network for each GPU of its cluster, where that is not what the GPU's file
says: Jean Zay's nodes of 8 A100 have 4 Omni-Path links of 100 Gbit/s."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One row. None stands for what is blank."""

    id: str
    source: str
    gpu: str
    gpus: int
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    data: int
    tensor: int
    pipeline: int
    global_batch: int
    precision: str
    flops_convention: str
    virtual_stages: int | None = None
    micro_batch: int | None = None
    zero_stage: int | None = None
    recompute: str | None = None
    seconds_per_step: float | None = None
    tflops_per_gpu: float | None = None
    gigabytes_per_gpu: float | None = None
    out_of_memory: bool = False
    """What the table says instead of gigabytes."""
    notes: str = ""


@dataclass(frozen=True)
class Prediction:
    """What the planner says of a run."""

    id: str
    tflops_per_gpu: float
    """By the row's convention."""
    seconds_per_step: float
    gigabytes_per_gpu: float
    """GiB, as PyTorch and nvidia-smi print them, of the fullest GPU."""
    fits: bool


def _flops(run: Run, factor: int, logits: int) -> float:
    """FLOPs of a step, attention in full: not only the causal half."""
    mlp = (8 + 4 * run.ffn / run.hidden) / 24
    of_layers = mlp + run.seq / (6 * run.hidden)
    of_head = run.vocab / (logits * run.layers * run.hidden)
    return factor * run.global_batch * run.seq * run.layers * run.hidden**2 * (of_layers + of_head)


CONVENTIONS: dict[str, Callable[[Run], float]] = {
    "hfu-96": lambda run: _flops(run, 96, 16),
    "mfu": lambda run: _flops(run, 72, 12),
}
"""How published tables count the FLOPs of a step: `hfu-96` as Narayanan et al. 2021, equation 3, with the forward pass
of every layer repeated; `mfu` as Megatron-Core's `num_floating_point_operations` did until 2024, without."""


KNOWN: dict[str, Collection[Any]] = {
    "precision": PRECISIONS,
    "flops_convention": CONVENTIONS,
    "zero_stage": range(4),
}
"""Column -> what it may say."""


def read(path: str | Path = RUNS) -> list[Run]:
    """The rows of a table.

    Raises:
        ConfigError: something that a run needs is missing, or not what it should be; names the line and the column.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            runs = [_run(row, f"{path}:{line}") for line, row in enumerate(csv.DictReader(file), start=2)]
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"{path}: no such file; give a table like {RUNS.name}") from None
    except (UnicodeDecodeError, csv.Error):
        raise ConfigError(f"{path}: not a text file in UTF-8, or no table; give a table like {RUNS.name}") from None
    if not runs:
        raise ConfigError(f"{path}: no runs; give a table like {RUNS.name}, with a line for each")
    return runs


def predict(run: Run, gpu: Gpu | None = None, gpus_per_node: int = 8) -> Prediction:
    """The prediction for a run, on its own kind of GPU unless another is given."""
    best = plan(run, gpu or gpu_of(run), gpus_per_node)
    return Prediction(
        id=run.id,
        tflops_per_gpu=CONVENTIONS[run.flops_convention](run) / best.seconds.total / run.gpus / 1e12,
        seconds_per_step=best.seconds.total,
        gigabytes_per_gpu=best.bytes_per_gpu / GIB,
        fits=best.fits,
    )


def plan(run: Run, gpu: Gpu, gpus_per_node: int = 8) -> Estimate:
    """The estimate of a run. Of what its row leaves open: the fastest that fits, or else the smallest."""
    gpu = dataclasses.replace(gpu, memory_fraction=1)  # other trainers take all that is there
    estimates = [estimate(arrangement, gpu, gpus_per_node) for arrangement in arrangements(run)]
    if fitting := [one for one in estimates if one.fits]:
        return min(fitting, key=lambda one: one.seconds.total)
    return min(estimates, key=lambda one: one.bytes_per_gpu)


def kind_of(run: Run) -> str:
    """`A100-80GB` -> `a100`."""
    return run.gpu.partition("-")[0].lower()


def gpu_of(run: Run) -> Gpu:
    """The kind of GPU, in the cluster that the run was on."""
    gpu = gpus.load(kind_of(run))
    network = next((speed for word, speed in NETWORKS.items() if word in run.source), gpu.network_bandwidth)
    return dataclasses.replace(gpu, network_bandwidth=network)


def practice_of(run: Run) -> Practice:
    """Whose habits a run had: flash attention and overlap came with Hopper; before that, selective recomputation came
    with sequence parallelism, and ZeRO meant DeepSpeed."""
    if kind_of(run) not in BEFORE_HOPPER:
        return MEGATRON_CORE
    if run.recompute != "full":
        return MEGATRON_2022
    return MEGATRON_DEEPSPEED if run.zero_stage else MEGATRON_2021


def arrangements(run: Run) -> Iterator[Arrangement]:
    """All that a row can mean.

    One that does not print its micro batch does not print its schedule: then it may have been interleaved, too.
    """
    policies = [policy for policy in POLICIES if run.recompute == policy] or POLICIES
    micros = (run.micro_batch,) if run.micro_batch else MICRO_BATCHES
    for policy, micro in itertools.product(policies, micros):
        chunks = {run.virtual_stages or 1}
        if not run.micro_batch:
            if run.global_batch % (run.data * micro):
                continue
            chunks |= set(_could_interleave(run, run.global_batch // (run.data * micro)))
        yield from (_arrangement(run, policy, micro, number) for number in sorted(chunks))


def _could_interleave(run: Run, micro_batches: int) -> Iterator[int]:
    """Virtual stages that Megatron would take: they divide the layers, and the stages divide the micro-batches."""
    if run.pipeline > 1 and micro_batches % run.pipeline == 0 and run.layers % run.pipeline == 0:
        yield from divisors(run.layers // run.pipeline)


def _arrangement(run: Run, policy: RecomputePolicy, micro: int, chunks: int) -> Arrangement:
    itemsize = BYTES[PRECISIONS[run.precision]]
    of_sums = 2 if run.precision == "fp16" else 4  # only where loss scaling keeps gradients in range
    practice = practice_of(run)
    zero = int(practice is MEGATRON_CORE) if run.zero_stage is None else run.zero_stage
    return Arrangement(
        model=_model(run),
        sequence=run.seq,
        micro_batch=micro,
        global_batch=run.global_batch,
        pipeline=run.pipeline,
        data=run.data,
        tensor=run.tensor,
        layers=_layers(run, chunks),
        flow=asynchronous(run.pipeline, chunks, run.global_batch / (run.data * micro)),
        itemsize=itemsize,
        sum_itemsize=of_sums,
        reduce_itemsize=of_sums,
        zero=zero,
        recompute=policy,
        practice=practice,
    )


def _model(run: Run) -> ModelConfig:
    """A GPT, which all of them are."""
    return ModelConfig(
        layers=run.layers,
        hidden=run.hidden,
        heads=run.heads,
        ffn=run.ffn,
        vocab=run.vocab,
        context=run.seq,
        positions="learned",
        norm="layernorm",
        activation="gelu",
        bias=True,
        tied="untied" not in run.notes,
    )


def _layers(run: Run, chunks: int) -> tuple[int, ...]:
    """Of each virtual stage. Where they do not divide, those in the middle have one more: away from the vocabulary."""
    virtual = run.pipeline * chunks
    fewest, more = divmod(run.layers, virtual)
    first = (virtual - more) // 2
    return tuple(fewest + (first <= stage < first + more) for stage in range(virtual))


def _run(row: dict[str, str], place: str) -> Run:
    values: dict[str, Any] = {"out_of_memory": OUT_OF_MEMORY in row.values()}
    kinds = get_type_hints(Run)
    for field in dataclasses.fields(Run):
        text = (row.get(field.name) or "").strip()
        if text and text != OUT_OF_MEMORY:
            values[field.name] = _value(text, kinds[field.name], f"{place}: {field.name}")
        elif field.default is dataclasses.MISSING:
            raise ConfigError(f"{place}: {field.name}: blank or missing; a run cannot be planned without it")
    for column, known in KNOWN.items():
        if (value := values.get(column)) is not None and value not in known:
            raise ConfigError(f"{place}: {column}: {value!r} is none of {', '.join(map(str, known))}")
    run = Run(**values)
    if run.hidden % run.heads:
        raise ConfigError(f"{place}: heads: {run.heads} do not divide hidden={run.hidden}")
    if run.data * run.tensor * run.pipeline != run.gpus:
        mesh = f"{run.data} data x {run.tensor} tensor x {run.pipeline} pipeline"
        raise ConfigError(f"{place}: {mesh} are not the {run.gpus} GPUs of the run")
    return run


def _value(text: str, kind: Any, place: str) -> Any:
    """The text as a number, where the column has numbers."""
    number = next((number for number in (int, float) if kind in (number, number | None)), None)
    if number is None:
        return text
    try:
        value = number(text)
    except ValueError:
        raise ConfigError(f"{place}: expected a number, got {text!r}") from None
    lowest = 0 if place.endswith("zero_stage") else 1 if number is int else 0
    if not lowest <= value <= MOST:
        raise ConfigError(f"{place}: expected a number from {lowest} to {MOST:g}, got {text!r}")
    return value
