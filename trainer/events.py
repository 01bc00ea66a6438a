"""What happens to a run beside training, as events.jsonl in its folder: one JSON object per line, for other tools.

    {"time": 1795975140.25, "event": "save", "step": 200, "seconds_lost": 1.8}

Nothing is ever taken back: a resumed run goes on below. Knows nothing of training, and of no event what it means.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from trainer.secrets import hide

FILE = "events.jsonl"
EVENTS = {
    "start": "the run begins: `devices`, `processes`",
    "restart": "it goes on from the checkpoint of `step`: the same; `lost_steps` were trained and not saved, and are "
    "trained again; the run was last seen alive at `last_seen`",
    "compile": "the first step of this start is done",
    "skip": "a step changed nothing: `loss`, `grad_norm`, null where not finite, `reason`",
    "spike": "a step's loss or gradient norm is much larger than before: the same",
    "rollback": "training went back to the checkpoint of step `back_to`, for `reason`, and leaves `batches` of "
    "`global_batch` samples out from now on",
    "save": "a checkpoint is on its way to disk; training waited for so long",
    "failed_save": "a checkpoint could not be written: `reason`",
    "evaluation": "on held-out text: its numbers, as in metrics.jsonl without `eval_`",
    "signal": "somebody wants the run to stop: `signal`",
    "watchdog": "nothing moved, and `process` was ended: its `phase`, and the processes that are `behind`",
    "end": "this start of the run ends: `reason` is finished, signal, or the error that ended it",
}
"""Every event there is. All have `time` (Unix seconds) and `step`; `seconds_lost` to training where that is known."""


class Events:
    """The events of one run, told by one process or, each a line at once, by several."""

    def __init__(self, folder: Path | None) -> None:
        """Of a run's folder; None tells nobody."""
        self._file = None if folder is None else folder / FILE

    def tell(self, event: str, step: int, **more: Any) -> None:
        """Adds a line, now. A number that is not finite is null.

        A line that cannot be written is left out: what happens is on the display too, and a full disk must not end a
        run that only meant to say so.
        """
        assert event in EVENTS, f"{event} stands in no table that says what it means"
        if self._file is None:
            return
        record = {"time": time.time(), "event": event, "step": step} | {name: _plain(x) for name, x in more.items()}
        line = json.dumps(record, allow_nan=False) + "\n"
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError:
            pass


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return hide(value)  # the reason of an error may hold the URL that failed, password and all
    return None if isinstance(value, float) and not math.isfinite(value) else value
