"""How a process that trains with others ends: together with them, or so that they hear why. Imports no JAX."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from trainer.processes import membership
from trainer.processes.membership import Membership
from trainer.processes.timing import BEAT, LOST_AFTER
from trainer.streams import Shown

_OF_ANOTHER = re.compile(r"gloo|nccl|connection|socket|UNAVAILABLE|DEADLINE_EXCEEDED", re.IGNORECASE)
"""In an error that JAX raises when another process is gone."""


@contextmanager
def farewell(report: Callable[[BaseException], int]) -> Iterator[None]:
    """`with` it around a command. Does nothing in a process that is alone.

    Args:
        report: tells the user of an error; returns the exit code.
    """
    try:
        yield
    except BaseException as error:
        if (here := membership.current()) is not None:
            if hasattr(error, "exit_code"):  # typer's: all processes end so
                _end_well(here)
            else:
                _end_unwell(here, error, report)
        raise
    if (here := membership.current()) is not None:
        _end_well(here)


def _end_well(here: Membership) -> None:
    here.watch.leave()
    here.client.shutdown()  # waits for the others
    if here.coordinator is not None:
        here.coordinator.shutdown()


def _end_unwell(here: Membership, error: BaseException, report: Callable[[BaseException], int]) -> None:
    """Ends the process there and then: JAX would wait for the others, and they for this one."""
    if _is_of_another(error):
        time.sleep(LOST_AFTER + 3 * BEAT)  # the watch says who is lost, and ends this process
    code = report(error)
    with suppress(RuntimeError):
        here.watch.fail(f"{type(error).__name__}: {error}".splitlines()[0])
    for stream in (sys.stdout, sys.stderr):
        Shown(stream).flush()
    os._exit(code)


def _is_of_another(error: BaseException) -> bool:
    return type(error).__name__ == "JaxRuntimeError" and bool(_OF_ANOTHER.search(str(error)))
