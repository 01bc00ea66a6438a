"""How fast batches are made from a .bin/.idx pair, what they cost a train step, and how soon a run goes on.

    python -m benchmarks.data_speed [--tokens 100e6] [--rounds 60]

The pair is made here: documents of 600 tokens in the mean, uint16. A batch is timed as the trainer makes it, shuffled,
packed, with its segments, positions and weights, and as it is put on one CPU device. Steps with new batches, made ahead
by the trainer's thread, and steps with one batch again and again take turns, each first in every other round; the ratio
is that of their seconds, the median over the rounds. Going on is all that data takes until the first batch is there, a
million samples on.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jax
import numpy as np

from benchmarks.common import Sizes, Times, ratio, show
from models.inputs import Batch
from sharding.mesh import make_mesh
from trainer.data.batches import TrainBatches, prefetch
from trainer.data.indexed import IndexedDataset, IndexedWriter
from trainer.data.packing import PackedSequences
from trainer.data.prepare import prepare
from trainer.devices import put_batch
from trainer.program import Program
from trainer.step import TrainState

SHAPES = ((256, 256), (2048, 64), (8192, 16))
"""Sequences of so many tokens, so many of them a batch."""
SMALL = Sizes(layers=2, hidden=128, ffn=512, vocab=2048)
"""Of which a step is short, so that what data costs would be seen."""
SAMPLES = 1_000_000
BATCHES, STEPS, PREFETCH = 20, 4, 2
GOAL_TOKENS, GOAL_STEP, GOAL_SECONDS = 50e6, 1.01, 2.0


def make_pair(prefix: Path, num_tokens: int, vocab: int) -> None:
    random = np.random.default_rng(0)
    with IndexedWriter(prefix, np.dtype("<u2")) as writer:
        while num_tokens > 0:
            length = min(max(2, int(random.lognormal(6, 1))), num_tokens)
            writer.add(random.integers(vocab, size=length, dtype=np.uint16))
            num_tokens -= length


def batches_of(prefix: Path, sequence: int, batch: int) -> TrainBatches:
    indexed = IndexedDataset.open(prefix)
    return TrainBatches(PackedSequences(indexed, range(indexed.num_documents), sequence), 0, batch)


def put(program: Program, batches: TrainBatches, step: int) -> Batch:
    return put_batch(program.mesh, program.batch_specs, batches.global_batch, partial(batches.rows, step))


def speeds(prefix: Path, program: Program, rounds: int) -> list[list[str]]:
    """Million tokens a second of each shape, in the best round: made; made ahead, and put on a device."""
    rows = []
    for sequence, batch in SHAPES:
        batches = batches_of(prefix, sequence, batch)
        made, ready = Times(), Times()
        for first in range(0, rounds * BATCHES, BATCHES):
            with made.measured(BATCHES):
                for step in range(first, first + BATCHES):
                    batches.batch(step)
            with ready.measured(BATCHES):
                for found in prefetch(partial(put, program, batches), first, first + BATCHES, PREFETCH):
                    jax.block_until_ready(found)
        best = [min(seconds) for times in (made, ready) for seconds in (times.cpu, times.wall)]
        rows.append([f"{batch} x {sequence:,}", *(f"{batch * sequence / seconds / 1e6:,.0f}" for seconds in best)])
    return rows


def steps(prefix: Path, program: Program, rounds: int) -> tuple[Times, Times]:
    """Steps with new batches, and with one again and again, in turns."""
    config = program.config
    batches = batches_of(prefix, config.batch.sequence, config.batch.global_)
    state, new, same = program.init(), Times(), Times()
    once = put(program, batches, 0)
    with contextlib.closing(prefetch(partial(put, program, batches), 0, (rounds + 1) * STEPS, PREFETCH)) as ahead:
        for turn in range(rounds + 1):  # the first, which compiles, is not counted
            turns = ((new, ahead), (same, iter([once] * STEPS)))
            for times, source in turns if turn % 2 else turns[::-1]:
                with (Times() if turn == 0 else times).measured(STEPS):
                    state = _train(program, state, source)
    return new, same


def _train(program: Program, state: TrainState, source: Iterator[Batch]) -> TrainState:
    for _ in range(STEPS):
        state, metrics = program.step(state, next(source))
    jax.block_until_ready(metrics)
    return state


def going_on(prefix: Path, cache: Path, sizes: Sizes) -> dict[str, float]:
    """Seconds until the first batch is there: of a new run, of one that has seen a million samples."""
    config = sizes.config(data={"path": str(prefix), "cache": str(cache)})
    prepare(config.data, config.model.vocab, lambda text: None)  # reads the pair once, as the run's start did

    def first_batch(samples: int) -> None:
        corpus = prepare(config.data, config.model.vocab, lambda text: None)
        TrainBatches(corpus.train(sizes.sequence), 0, sizes.batch).batch(samples // sizes.batch)

    return {f"{samples:,}": _wall_seconds(partial(first_batch, samples)) for samples in (0, SAMPLES)}


def _wall_seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(num_tokens: int = 100_000_000, rounds: int = 60, sizes: Sizes = SMALL) -> None:
    config = sizes.config()
    program = Program(config, make_mesh(config.mesh, jax.devices()[:1]))
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "text")
        make_pair(prefix, num_tokens, sizes.vocab)
        show(
            f"Million tokens a second (goal: {GOAL_TOKENS / 1e6:.0f})",
            ["batch", "made, by CPU time", "by wall time", "on a device, by CPU time", "by wall time"],
            speeds(prefix, program, rounds),
        )
        new, same = steps(prefix, program, rounds)
        seconds = {name: statistics.median(times.wall) for name, times in (("new", new), ("the same", same))}
        wall, cpu = ratio(new.wall, same.wall), ratio(new.cpu, same.cpu)
        show(
            f"Seconds of a step, {rounds} rounds of {STEPS}",
            ["batches", "new", "the same", "wall ratio", "CPU ratio", "goal"],
            [
                [
                    f"{sizes.batch} x {sizes.sequence}",
                    *(f"{s:.3f}" for s in seconds.values()),
                    f"{wall:.3f}",
                    f"{cpu:.3f}",
                    f"{GOAL_STEP}",
                ]
            ],
        )
        waited = going_on(prefix, Path(folder, "cache"), sizes)
        show(
            "Seconds to the first batch",
            ["samples seen", "seconds", "goal"],
            [[name, f"{seconds:.3f}", f"{GOAL_SECONDS:g}"] for name, seconds in waited.items()],
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=100e6)
    parser.add_argument("--rounds", type=int, default=60)
    jax.config.update("jax_platforms", "cpu")
    asked = parser.parse_args()
    main(int(asked.tokens), asked.rounds)
