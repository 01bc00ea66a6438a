"""What processes have to be alike in before they train."""

from __future__ import annotations

import pytest

from tests.trainer.processes.texts import Texts
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.processes import membership, preflight
from trainer.processes.membership import Membership
from trainer.processes.place import Place
from trainer.processes.preflight import difference, facts_of_start

NAMES = ["process 0 on gpu01", "process 1 on gpu02", "process 2 on gpu02"]


def facts(**overrides: object) -> dict[str, str]:
    config = Config.from_dict({}, {name.replace("__", "."): value for name, value in overrides.items()})
    return facts_of_start(config.to_dict(), ["NVIDIA H100", "NVIDIA H100"])


def test_alike() -> None:
    assert not difference(NAMES, [facts(), facts(), facts()]).strip()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (facts() | {"jax": "0.9.9"}, f"jax is 0.9.9 there and {facts()['jax']} here"),
        (facts(seed=3, train__steps=7), "train.steps is 7 there and 1000 here; seed is 3 there and 0 here"),
        (
            facts_of_start(Config().to_dict(), ["NVIDIA H100"]),
            "devices is 1 x NVIDIA H100 there and 2 x NVIDIA H100 here",
        ),
    ],
    ids=["another version", "another config", "other devices"],
)
def test_who_differs_in_what(other: dict[str, str], said: str) -> None:
    assert difference(NAMES, [facts(), facts(), other]) == f"process 2 on gpu02 is not like process 0 on gpu01: {said}"
    assert difference(NAMES, [facts(), other, other]).startswith("process 1 on gpu02 is not like")


def test_all_end_with_the_same_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    store, hashes = Texts(), ("a", "b")
    store.put("1 data/1", '{"hash": "b"}')  # the second has said it; both find out in their turn
    for process in range(2):
        place = Place("a test", "localhost:1", 2, process)
        here = Membership(place, NAMES[:2], store, None, None, None)  # type: ignore[arg-type]
        monkeypatch.setattr(preflight, "current", lambda here=here: here)
        with pytest.raises(ConfigError) as error:
            preflight.require_alike("data", {"hash": hashes[process]})
        assert str(error.value) == "process 1 on gpu02 is not like process 0 on gpu01: hash is b there and a here"


def test_a_process_that_is_alone_is_like_itself() -> None:
    assert membership.current() is None
    preflight.require_alike("data", {"hash": "a"})
