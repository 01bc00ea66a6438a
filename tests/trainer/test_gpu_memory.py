"""How much of a GPU JAX takes is asked for where the user has said nothing, and told as it is."""

from __future__ import annotations

import pytest

from trainer.gpu_memory import FRACTION, VARIABLE, ask_for_memory, asked_for


def test_it_is_asked_for_where_nothing_is_said() -> None:
    environment: dict[str, str] = {}
    assert asked_for(environment) == "XLA_CLIENT_MEM_FRACTION is not set, which is 0.75"
    ask_for_memory(environment)
    assert environment == {VARIABLE: str(FRACTION)}
    assert asked_for(environment) == "XLA_CLIENT_MEM_FRACTION=0.92"


@pytest.mark.parametrize(
    "theirs",
    [
        {"XLA_CLIENT_MEM_FRACTION": "0.5"},
        {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"},  # which JAX refuses beside the first
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
    ],
    ids=str,
)
def test_what_the_user_has_said_stays(theirs: dict[str, str]) -> None:
    environment = dict(theirs)
    ask_for_memory(environment)
    assert environment == theirs
    assert asked_for(environment) == "=".join(*theirs.items())
