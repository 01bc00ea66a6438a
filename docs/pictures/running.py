"""A run with a bad batch that goes back: what the guard sees of it, and which batches its steps train on."""

from __future__ import annotations

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, Drawing
from trainer.failures.config import FailuresConfig
from trainer.failures.guard import Guard
from trainer.failures.rollbacks import batch_of

LOSSES = [4.1, 3.9, 3.8, 3.7, 3.7, 3.6, 3.6, 3.5, 3.5, 9.0, 5.2, 4.6]
LOG_EVERY, CHECKPOINT_EVERY = 6, 4
CELL, LEFT = 38, 168


def draw() -> Drawing:
    d = Drawing(820, 318, "A rollback: the bad batch is left out from then on")
    guard = Guard(FailuresConfig(on_spike="rollback", window=4), LOG_EVERY)
    bad = [step for step, loss in enumerate(LOSSES, 1) if guard.look(step, loss, 1.0)]
    back_to = max(range(0, bad[0], CHECKPOINT_EVERY))
    left_out = [step - 1 for step in bad]
    _losses(d, 96, bad)
    _row(d, 128, "batches", range(len(LOSSES)), [], bad)
    end, start = _x(len(LOSSES)) - 20, _x(back_to) + 16
    d.line([(end, 162), (end, 196), (start, 196), (start, 228)], ORANGE, arrow=True)
    read = f"read at step {len(LOSSES)}: back to the checkpoint of step {back_to}"
    d.text(start - 10, 216, read, ORANGE, size=12, anchor="end")
    _row(d, 232, "batches, again", range(back_to, len(LOSSES) + 4), left_out, [])
    left = f"batch {left_out[0]} stands in rollbacks.jsonl: no step of the run trains on it any more"
    d.text(20, 292, left, FAINT, size=12)
    return d


def _losses(d: Drawing, y: float, bad: list[int]) -> None:
    d.text(20, y - 8, "loss", INK, bold=True)
    for step, loss in enumerate(LOSSES, 1):
        height = 7 * loss
        d.bar(_x(step - 1), y + 10 - height, CELL - 6, height, ORANGE if step in bad else BLUE)
    d.text(
        _x(bad[0] - 1) + CELL / 2 - 3, y - 62, "more than 1.5 times what was usual", ORANGE, size=12, anchor="middle"
    )


def _row(d: Drawing, y: float, name: str, steps: range, left_out: list[int], bad: list[int]) -> None:
    d.text(20, y + 20, name, INK, bold=True)
    for step in steps:
        colour = ORANGE if step + 1 in bad else GREEN if left_out else BLUE
        d.box(_x(step), y, CELL - 6, 30, colour, radius=3)
        batch = str(batch_of(step, left_out))
        d.text(_x(step) + (CELL - 6) / 2, y + 20, batch, colour, size=13, mono=True, anchor="middle")
        if step % CHECKPOINT_EVERY == 0 and 0 < step < len(LOSSES) and not left_out:
            d.line([(_x(step) - 3, y - 4), (_x(step) - 3, y + 34)], INK)
            d.text(_x(step) - 3, y + 48, "checkpoint", FAINT, size=11, anchor="middle")


def _x(step: float) -> float:
    return LEFT + step * CELL
