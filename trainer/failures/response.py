"""What a run does about steps that went wrong, as its config wants it: nothing more, stop, or go back.

Every process comes to the same decision by itself, as the numbers of a step are the same on all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.errors import PermanentError
from trainer.failures.guard import Trouble
from trainer.failures.rollbacks import Rollback, batch_of

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class Setback(Exception):
    """Training is to go on from an older checkpoint."""

    def __init__(self, rollback: Rollback) -> None:
        super().__init__(rollback.reason)
        self.rollback = rollback


def respond(trainer: Trainer, troubles: Sequence[Trouble]) -> None:
    """Returns where training is to go on as it is.

    Raises:
        Setback: it is to go back first.
        PermanentError: it is to stop, or cannot go back.
    """
    wanted, most_skips = trainer.config.failures.wanted, trainer.config.failures.most_skips
    for trouble in troubles:
        if most_skips is not None and trouble.skips >= most_skips:
            raise PermanentError(_diverged(trainer, trouble))
    troubles = [trouble for trouble in troubles if wanted(trouble.kind) != "skip"]
    if not troubles:
        return
    with contextlib.suppress(OSError):  # that is told when the next is saved
        trainer.checkpoints.wait()  # what is on its way to disk counts, too
    for trouble in troubles:
        if wanted(trouble.kind) == "stop":
            raise PermanentError(
                f"{_describe(trainer, trouble)}; {_newest(trainer)}. With failures.on_{trouble.kind}=rollback it would "
                "go back by itself, and leave the batch out"
            )
    raise Setback(_plan(trainer, troubles))


def _plan(trainer: Trainer, bad: Sequence[Trouble]) -> Rollback:
    config, first = trainer.config, bad[0]
    if len(trainer.rollbacks.done) >= config.failures.most_rollbacks:
        raise PermanentError(
            f"{_describe(trainer, first)}; the run has gone back {len(trainer.rollbacks.done)} times already, and "
            f"{_newest(trainer)}. Raise failures.most_rollbacks (it is {config.failures.most_rollbacks}), or lower "
            "optimizer.learning_rate"
        )
    saved = trainer.checkpoints.steps()
    old_enough = [step for step in saved if step < first.step - config.failures.steps_back]
    if saved and not old_enough:
        raise PermanentError(
            f"{_describe(trainer, first)}, and no checkpoint is older by failures.steps_back="
            f"{config.failures.steps_back}: there are those of steps {saved}. Raise train.keep_checkpoints, or lower "
            "failures.steps_back"
        )
    return Rollback(
        step=trainer.step,
        back_to=max(old_enough, default=trainer.first_step),
        batches=[_batch(trainer, trouble) for trouble in bad],
        global_batch=config.batch.global_,
        reason=_describe(trainer, first),
    )


def _diverged(trainer: Trainer, last: Trouble) -> str:
    limit = trainer.config.failures.most_skips
    return (
        f"the run has diverged: the last {last.skips} steps, {last.step - last.skips + 1} to {last.step}, changed "
        f"nothing (failures.most_skips={limit}); {_describe(trainer, last)}; {_newest(trainer)}. "
        "Lower optimizer.learning_rate, or optimizer.clip; where that checkpoint's weights are spoilt already, go on "
        "from an older one (meshwright checkpoints RUN --remove STEP)"
    )


def _describe(trainer: Trainer, trouble: Trouble) -> str:
    batch, size = _batch(trainer, trouble), trainer.config.batch.global_
    return (
        f"step {trouble.step} went wrong: {trouble.why} (loss {trouble.loss:.4g}, gradient norm "
        f"{trouble.grad_norm:.4g}, on batch {batch}: samples {batch * size} to {(batch + 1) * size - 1})"
    )


def _batch(trainer: Trainer, trouble: Trouble) -> int:
    return batch_of(trouble.step - 1, trainer.rollbacks.left_out(trainer.config.batch.global_))


def _newest(trainer: Trainer) -> str:
    newest = trainer.checkpoints.newest()
    return "nothing is saved yet" if newest is None else f"the newest checkpoint is that of step {newest}"
