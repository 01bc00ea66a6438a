"""The pictures of a run: its numbers over steps, with what happened, and its steps over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainer.page.bars import AMBER, BLUE, BROWN, GREEN, LILAC, ORANGE, PINK, PURPLE, RED, TEAL
from trainer.page.chart import Curve, Marks, chart
from trainer.picture import Picture
from trainer.report.folder import Run
from trainer.report.goodput import first_start, last_sign
from trainer.units import GIB, HOUR, MINUTE

WIDE, TALL, LOW = 1016, 320, 230  # pixels
LONG = 100
"""Records, from which on a run is long."""
MARKS = {
    "restart": ("restart", PURPLE),
    "rollback": ("rollback", BROWN),
    "skip": ("skipped step", RED),
    "spike": ("spike", AMBER),
    "failed_save": ("failed save", PINK),
    "watchdog": ("watchdog", LILAC),
}
"""Events that are marked on the loss, in these words."""
MEMORY = {"host_bytes": ("process", LILAC), "device_bytes": ("fullest device, peak", ORANGE)}


def losses(run: Run) -> Iterator[Picture]:
    """In training and on held-out text, with what happened; and the second half, where a long run's first falls far."""
    yield _loss("Loss, nats per token", run, 0, TALL)
    if len(run.training) >= LONG:
        yield _loss("The second half", run, run.step // 2, LOW)


def _loss(title: str, run: Run, first: int, height: int) -> Picture:
    """From step `first` on."""
    training, evaluations = (found.where(found.step >= first) for found in (run.training, run.evaluations))
    told = {name: [event.step for event in run.told(name) if event.step >= first] for name in MARKS}
    return chart(
        title,
        [
            Curve("training", BLUE, training.step, training["loss"]),
            Curve("held out", ORANGE, evaluations.step, evaluations["eval_loss"], dots=True),
        ],
        width=WIDE,
        height=height,
        marks=[Marks(*MARKS[name], np.array(steps, float)) for name, steps in told.items() if steps],
    )


def details(run: Run) -> Iterator[Picture]:
    """All else that is logged, in smaller pictures: what is always there, then what may be."""
    training = run.training
    speed = np.where(np.isin(training.step, _compiling(run)), np.nan, training["tokens_per_second"])
    yield _small("Gradient norm, before clipping", run, GREEN, training["grad_norm"])
    yield _small("Learning rate", run, PURPLE, training["learning_rate"], from_zero=True)
    yield _small("Tokens per second", run, TEAL, speed, from_zero=True)
    memory = [
        Curve(name, colour, training.step, training[field] / GIB)
        for field, (name, colour) in MEMORY.items()
        if training.last(field) is not None
    ]
    if memory:
        whose = f" of the {memory[0].name}" if len(memory) == 1 else ""
        yield chart(f"Memory{whose}, GiB", memory, from_zero=True)
    if len(np.unique(training["loss_scale"][np.isfinite(training["loss_scale"])])) > 1:
        yield _small("Loss scale", run, BROWN, training["loss_scale"])


def progress(run: Run) -> Picture | None:
    """Steps over time since the first start: flat where nothing is trained. None where no times are told."""
    time = run.training["time"]
    if not run.starts or not np.isfinite(time).any():
        return None
    counted, repeated = [], []
    for start, after in zip(run.starts, [*run.starts[1:], None], strict=True):
        own = (run.training.step > start.step) & (run.training.step <= (np.inf if after is None else after.step))
        counted.append(_piece([start.time, *time[own]], [start.step, *run.training.step[own]]))
        lost = after and after.more.get("lost_steps")
        if after and lost:
            repeated.append(_piece([counted[-1][-1, 0], after.more["last_seen"]], [after.step, after.step + lost]))
    unit, name = (HOUR, "hours") if last_sign(run) - first_start(run) >= 2 * HOUR else (MINUTE, "minutes")
    curves = [
        Curve("steps that count", GREEN, *_joined(counted, first_start(run), unit)),
        Curve("trained again later", ORANGE, *_joined(repeated, first_start(run), unit), mute=True),
    ]
    return chart(
        f"Steps over {name}",
        curves,
        width=WIDE,
        height=LOW,
        x_name=f"{name} since the first start",
        from_zero=True,
    )


def _small(title: str, run: Run, colour: str, numbers: np.ndarray, from_zero: bool = False) -> Picture:
    return chart(title, [Curve(title, colour, run.training.step, numbers)], from_zero=from_zero)


def _compiling(run: Run) -> list[int]:
    """Steps whose time is that of the compiler: the first of each start."""
    return [start.step + 1 for start in run.starts] or [1]


def _piece(times: Sequence[float], steps: Sequence[float]) -> np.ndarray:
    """Points [n, 2] of a line, after a gap."""
    return np.array([[times[0], *times], [np.nan, *steps]]).T


def _joined(pieces: Sequence[np.ndarray], began: float, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Time since `began`, and steps."""
    points = np.concatenate([np.zeros((0, 2)), *pieces])
    points = points[np.isfinite(points[:, 0])]
    return (points[:, 0] - began) / unit, points[:, 1]
