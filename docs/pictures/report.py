"""The upper half of a report: an invented run of 24,000 steps with a crash, a rollback and skipped steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

from trainer.page.bars import stack
from trainer.picture import Area, Label, Line, Picture, Rect, Shape
from trainer.report import curves, goodput, story
from trainer.report.columns import Columns
from trainer.report.folder import Event, Run

STEPS, EVERY, SECONDS, TOKENS = 24_000, 20, 4.1, 4_194_304
EVENTS = [
    # hours, event, step, and what else is told
    (0.0, "start", 0, {}),
    (0.12, "compile", 1, {"seconds_lost": 190.0}),
    (8.4, "restart", 6_500, {"lost_steps": 460, "seconds_lost": 1_886.0, "last_seen": 8.05}),
    (8.52, "compile", 6_501, {"seconds_lost": 190.0}),
    *((9 + index, "evaluation", 7_000, {"seconds_lost": 90.0}) for index in range(12)),
    (20.6, "skip", 17_180, {"seconds_lost": SECONDS}),
    (20.7, "skip", 17_260, {"seconds_lost": SECONDS}),
    (21.3, "rollback", 17_900, {"seconds_lost": 1_230.0}),
    (28.8, "end", STEPS, {"reason": "finished"}),
]
SPANS = ((0, 6_500, 0.12), (6_500, STEPS, 8.52))
"""Of steps, and the hour at which each begins."""
WIDTH, MARGIN, FACT = 1080, 32, 205


def draw() -> Picture:
    run = _run()
    spent = goodput.goodput(run)
    assert spent is not None
    shapes: list[Shape] = [Label("ink", MARGIN, 40, f"✓ {story.story(run, 0.0).sentence}", bold=True)]
    for number, fact in enumerate(list(story.facts(run, spent))[:5]):
        x = MARGIN + FACT * number
        shapes += [Rect("edge", x, 62, 3, 38), Label("faint", x + 12, 74, fact.name)]
        shapes.append(Label("ink", x + 12, 94, fact.value, bold=True))
    top = 124
    for picture in curves.losses(run):
        shapes += _moved(picture, MARGIN, top)
        top += picture.height + 16
    shapes += _time(spent, top + 10)
    return Picture("A report: the loss over steps, and where the time went", WIDTH, top + 100, shapes)


def _run() -> Run:
    random = Random(0)
    step = np.array([at for first, last, _ in SPANS for at in (first + 1, *range(first + EVERY, last + 1, EVERY))])
    hour = np.concatenate(
        [start + SECONDS / 3600 * (step[(step > first) & (step <= last)] - first) for first, last, start in SPANS]
    )
    loss = 1.7 + 9 * (1 + step / 60) ** -0.42
    heldout = np.arange(2_000, STEPS + 1, 2_000)
    numbers = {
        "time": 3600 * hour,
        "loss": loss + [random.gauss(0, 0.03) for _ in step],
        "tokens": step * float(TOKENS),
        "tokens_per_second": np.full(len(step), TOKENS / SECONDS),
        "step_seconds": np.full(len(step), SECONDS),
    }
    events = [
        Event(3600 * at, name, when, more | ({"last_seen": 3600 * more["last_seen"]} if "last_seen" in more else {}))
        for at, name, when, more in EVENTS
    ]
    return Run(
        path=Path("runs/an-8b-model"),
        config={"run": {"name": "an-8b-model"}, "train": {"steps": STEPS}},
        environments=[],
        events=events,
        training=Columns(step, numbers),
        evaluations=Columns(heldout, {"eval_loss": np.interp(heldout, step, loss) + 0.04}),
        checkpoints=[STEPS],
        seen=None,
    )


def _time(spent: goodput.Goodput, top: float) -> Iterator[Shape]:
    """The bar of where the time went, and its key."""
    x, room = float(MARGIN), WIDTH - 2 * MARGIN
    parts = [part for part in stack(spent.parts, goodput.MEANINGS, goodput.COLOURS, spent.wall) if part.amount]
    yield Label("ink", x + 2, top, "Where the time went", bold=True)
    for part in parts:
        yield Rect(part.colour, x, top + 14, part.width / 100 * room, 24)
        x += part.width / 100 * room
    x = float(MARGIN)
    for part in parts:
        text = f"{part.name} {part.share:.1%}"
        yield Rect(part.colour, x, top + 52, 10, 10)
        yield Label("faint", x + 15, top + 62, text)
        x += 40 + 6.6 * len(text)


def _moved(picture: Picture, x: float, y: float) -> Iterator[Shape]:
    for shape in picture.shapes:
        match shape:
            case Rect() | Label():
                yield shape._replace(x=shape.x + x, y=shape.y + y)
            case Area(_, corners):
                yield shape._replace(corners=[(left + x, top + y) for left, top in corners])
            case Line(_, points, _):
                yield shape._replace(points=[(left + x, top + y) for left, top in points])
