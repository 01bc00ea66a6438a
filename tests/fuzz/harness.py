"""How anything is fuzzed: a short run in the suite that is the same each time, a long one in the sweep that is not.

What is loaded may be refused, in clear words, and in no other way; it may not take long, and not much memory.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from trainer.errors import ConfigError

SECONDS, BYTES = 10, 300 * 2**20
"""That one load may take. The machine is shared, so these tell a hang or a bomb from work, not slow from fast."""
_ANY = list(HealthCheck)
SHORT = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=_ANY)
LONG = settings(max_examples=3_000, deadline=None, database=None, suppress_health_check=_ANY)


def fuzzed(*inputs: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A property of random inputs, as a test with the parameter `length`. Inputs come after fixtures."""

    def decorate(holds: Callable[..., None]) -> Callable[..., None]:
        runs = {name: how(given(*inputs)(holds)) for name, how in (("short", SHORT), ("long", LONG))}

        @pytest.mark.parametrize("length", ["short", pytest.param("long", marks=pytest.mark.sweep)])
        def test(length: str) -> None:
            runs[length]()

        test.__name__, test.__doc__ = holds.__name__, holds.__doc__
        return test

    return decorate


@contextlib.contextmanager
def only_clear_errors(*others: type[Exception]) -> Iterator[None]:
    """What is within succeeds, or raises a ConfigError, an OSError or one of `others`; soon, in little memory."""
    start, before, said = time.process_time(), _peak(), "nothing"
    try:
        yield
    except (ConfigError, OSError, *others) as error:
        said = str(error)
    assert 0 < len(said) < 10_000, "an error is to be read"
    said.encode("utf-8")  # a terminal can show it
    assert time.process_time() - start < SECONDS
    assert _peak() - before < BYTES


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
