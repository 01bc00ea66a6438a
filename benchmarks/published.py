"""The planner against what others published: speed and memory of runs that it has only the sizes of.

    python -m benchmarks.published [FILE.csv]

Prints every row as predicted and as published, with the constants of `trainer/planner/gpus`, and once more with
constants that were fitted without any row of its source. Those constants are two: the parts of the matmul rate and of
the memory bandwidth that a step reaches. Fitting takes some 20 seconds. TFLOP/s are by the convention of each row
(`trainer.planner.published.CONVENTIONS`); memory is in GiB.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scipy.optimize import least_squares

from benchmarks.common import show
from trainer.planner.gpu import Gpu
from trainer.planner.published import RUNS, Prediction, Run, gpu_of, kind_of, predict, read

REFERENCE = "a100"
"""The kind whose rows decide how much of the memory bandwidth is reached, for all kinds."""
START, LOWEST = (0.8, 0.8), (0.4, 0.4)


class Reached(NamedTuple):
    """Parts of what a kind of GPU can do."""

    matmul: float
    memory: float

    def by(self, run: Run) -> Gpu:
        """The run's GPU with these constants."""
        gpu = gpu_of(run)
        return dataclasses.replace(gpu, efficiency=dataclasses.replace(gpu.efficiency, **self._asdict()))


def fit(runs: Sequence[Run]) -> dict[str, Reached]:
    """The constants of every kind that has runs here, and of the reference; each source counts alike."""
    known = [run for run in runs if run.tflops_per_gpu]
    reference = _fit([run for run in known if kind_of(run) == REFERENCE], 2)
    fitted = {REFERENCE: Reached(*reference)}
    for kind in {kind_of(run) for run in known} - {REFERENCE}:
        (matmul,) = _fit([run for run in known if kind_of(run) == kind], 1, reference)
        fitted[kind] = Reached(matmul, reference[1])
    return fitted


def _fit(runs: Sequence[Run], free: int, others: Sequence[float] = ()) -> list[float]:
    """The first `free` constants, the rest being those of `others`, by least squares of the logarithms of ratios."""
    weight = Counter(run.source for run in runs)

    def errors(constants: Iterable[float]) -> list[float]:
        reached = Reached(*constants, *others[free:])
        return [
            math.log(1 + _error(predict(run, reached.by(run)), run)) / math.sqrt(weight[run.source]) for run in runs
        ]

    solution = least_squares(errors, START[:free], bounds=(LOWEST[:free], [1] * free), diff_step=1e-3, xtol=1e-4)
    return [float(constant) for constant in solution.x]


def left_out(runs: Sequence[Run]) -> dict[str, Prediction]:
    """Row -> its prediction with constants that no row of its source had a part in."""
    predictions = {}
    for source in {run.source for run in runs}:
        fitted = fit([run for run in runs if run.source != source])
        for run in (run for run in runs if run.source == source):
            reached = fitted.get(kind_of(run), fitted[REFERENCE])
            predictions[run.id] = predict(run, reached.by(run))
    return predictions


def _error(prediction: Prediction, run: Run, what: str = "tflops_per_gpu") -> float:
    """Predicted over published, less one."""
    return float(getattr(prediction, what) / getattr(run, what) - 1)


def main(path: str = str(RUNS)) -> None:
    runs = read(path)
    ours = {run.id: predict(run) for run in runs}
    without = left_out(runs)
    speed = [
        [
            run.id,
            f"{run.tflops_per_gpu:.1f}",
            f"{ours[run.id].tflops_per_gpu:.1f}",
            f"{_error(ours[run.id], run):+.1%}",
            f"{_error(without[run.id], run):+.1%}",
        ]
        for run in runs
        if run.tflops_per_gpu
    ]
    show("TFLOP/s per GPU", ["run", "published", "predicted", "error", "its source left out"], speed)
    show(
        "Memory, GiB of the fullest GPU",
        ["run", "published", "predicted", "error", "predicted to fit"],
        [_memory_row(run, ours[run.id]) for run in runs],
    )
    for kind, reached in sorted(fit(runs).items()):
        print(f"fitted with all rows, {kind}: matmul {reached.matmul:.3f}, memory {reached.memory:.3f}")
    print(_summary("TFLOP/s per GPU", ours, runs, "tflops_per_gpu"))
    print(_summary("TFLOP/s per GPU, source left out", without, runs, "tflops_per_gpu"))
    print(_summary("GiB per GPU", ours, runs, "gigabytes_per_gpu"))
    wrong = [run.id for run in runs if ours[run.id].fits == run.out_of_memory]
    print(
        f"fits or not: {len(runs) - len(wrong)} of {len(runs)} as published{''.join(f'; wrong: {id}' for id in wrong)}"
    )


def _memory_row(run: Run, prediction: Prediction) -> list[str]:
    known = run.gigabytes_per_gpu
    return [
        run.id,
        "out of memory" if run.out_of_memory else f"{known:.0f}" if known else "",
        f"{prediction.gigabytes_per_gpu:.1f}",
        f"{_error(prediction, run, 'gigabytes_per_gpu'):+.1%}" if known else "",
        "yes" if prediction.fits else "no",
    ]


def _summary(title: str, predictions: Mapping[str, Prediction], runs: Sequence[Run], what: str) -> str:
    errors = {run.id: abs(_error(predictions[run.id], run, what)) for run in runs if getattr(run, what)}
    worst = max(errors, key=errors.__getitem__)
    return (
        f"{title}: {len(errors)} rows, off by {statistics.median(errors.values()):.1%} in the median, "
        f"{errors[worst]:.1%} at worst ({worst})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
