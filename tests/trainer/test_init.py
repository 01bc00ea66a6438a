"""A new run that begins with the weights, or all, of another's checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer import small
from trainer import Config, ConfigError, Trainer
from trainer.data.tokenizer_files import TOKENIZER

STEPS = 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero": {"mesh": {"data": 4, "tensor": 2}, "zero.stage": 3},
    "stages": {"mesh": {"pipeline": 2, "data": 4}},
    "offload": {"mesh": {"data": 4, "tensor": 2}, "offload.optimizer": "host"},
}


def tree(place: Path, name: str, text: str = "text") -> dict[str, Any]:
    plain = small.tree(place / text, place / name)
    plain["model"]["layers"] = 2
    plain["train"] = {"steps": STEPS, "log_every": 1}
    return plain


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, `base`, its text, and another text."""
    place = tmp_path_factory.mktemp("user")
    small.write_text(place / "text")
    small.write_text(place / "other", num_documents=24)
    for file in (place / "other").iterdir():
        file.write_text(f"quite other words {file.read_text()}", encoding="utf-8")
    Trainer(Config.from_dict(tree(place, "base"))).train()
    return place


@pytest.fixture(scope="module")
def saved(place: Path) -> dict[str, np.ndarray]:
    return arrays(Trainer.from_run(place / "base"))


def arrays(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: np.asarray(jax.device_get(array)) for name, array in trainer.state.items()}


def new(
    place: Path, run: Path, more: dict[str, Any] | None = None, start: str = "base", text: str = "other"
) -> Trainer:
    overrides = {"run.dir": str(run), "init.from": str(place / start), **(more or {})}
    return Trainer(Config.from_dict(tree(place, "new", text), overrides))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_weights_alone_are_taken_on_any_layout(
    place: Path, saved: dict[str, np.ndarray], tmp_path: Path, layout: str
) -> None:
    more = {"batch.sequence": 8, "optimizer.name": "lion", "optimizer.beta2": 0.9, "seed": 3}
    begun = new(place, tmp_path / "run", LAYOUTS[layout] | more)
    assert begun.step == begun.tokens == 0
    fresh = arrays(Trainer(Config.from_dict(tree(place, "none"), {**more, "run.dir": str(tmp_path / "none")})))
    for name, array in arrays(begun).items():
        np.testing.assert_array_equal(array, saved[name] if name.startswith("parameters.") else fresh[name], name)


def test_all_is_taken_where_it_is_wanted(place: Path, saved: dict[str, np.ndarray], tmp_path: Path) -> None:
    begun = new(place, tmp_path / "run", {"init.state": "all", "batch.sequence": 8, "train.steps": STEPS + 1})
    assert begun.step == STEPS
    for name, array in arrays(begun).items():
        np.testing.assert_array_equal(array, saved[name], name)
    begun.train()
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert steps == [STEPS + 1]
    assert json.loads((tmp_path / "run/events.jsonl").read_text().splitlines()[0])["event"] == "start"


def test_it_trains_in_the_tokens_that_the_weights_know_and_goes_on_from_its_own(place: Path, tmp_path: Path) -> None:
    base = shutil.copytree(place / "base", tmp_path / "base")
    run = tmp_path / "run"
    new(place, run, {"init.from": str(base)}).train()
    assert (run / TOKENIZER).read_text() == (base / TOKENIZER).read_text()
    (record,) = json.loads((run / "environment.json").read_text())
    assert record["init"]["from"] == str(base / f"checkpoints/{STEPS}")
    assert (record["init"]["step"], record["init"]["state"]) == (STEPS, "weights")
    shutil.rmtree(base)
    resumed = Trainer(Config.load(run / "config.yaml", {"train.steps": STEPS + 1}))
    assert resumed.step == STEPS
    resumed.train()
    assert json.loads((run / "environment.json").read_text())[-1]["init"] == record["init"]
    assert Trainer.from_run(run).evaluate()["loss"] > 0


def test_a_checkpoint_may_be_named_itself(place: Path, saved: dict[str, np.ndarray], tmp_path: Path) -> None:
    begun = new(place, tmp_path / "run", start=f"base/checkpoints/{STEPS}")
    name = "parameters.embedding.weight"
    np.testing.assert_array_equal(arrays(begun)[name], saved[name])
    alone = shutil.copytree(place / f"base/checkpoints/{STEPS}", tmp_path / "alone")
    with pytest.raises(ConfigError, match=r"no tokenizer beside it.*as data\.tokenizer"):
        _ = new(place, tmp_path / "run", {"init.from": str(alone)}).corpus
    given = {"init.from": str(alone), "data.tokenizer": str(place / "base" / TOKENIZER)}
    begun = new(place, tmp_path / "run", given)
    assert begun.corpus.whole.num_documents == 24
    np.testing.assert_array_equal(arrays(begun)[name], saved[name])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"model.hidden": 64},
            r"set model\.\* as it was there.*\n  parameters\.\S+ is float32\[.* there and",
        ),
        ({"model.positions": "learned"}, r"parameters\.\S*position\S* is float32\[32, 32\] here and not there"),
        (
            {"model.vocab": 320},
            r"embedding\.weight is float32\[300, 32\] there and float32\[320, 32\] here",
        ),
        ({"init.state": "all", "optimizer.name": "sgd"}, r"or take its weights alone: init\.state=weights"),
    ],
    ids=["hidden", "positions", "vocab", "optimizer"],
)
def test_what_does_not_fit_is_named(place: Path, tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)init\.from=.*{message}"):
        _ = new(place, tmp_path / "run", more).state


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("nothing", "no such folder"),
        ("text", "neither a run's folder nor a checkpoint"),
    ],
)
def test_what_is_no_run_is_told(place: Path, tmp_path: Path, start: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"init\.from=\S*{start}: {message}"):
        _ = new(place, tmp_path / "run", start=start).state


def test_other_tokens_are_refused(place: Path, tmp_path: Path) -> None:
    other = Config.from_dict(tree(place, "unused", "other"))
    _ = (corpus := Trainer(other).corpus)
    assert corpus.tokenizer is not None
    (tmp_path / "tokens").mkdir()
    corpus.tokenizer.save(tmp_path / "tokens")
    with pytest.raises(ConfigError, match=r"know other tokens: .* another id.*base/tokenizer\.json"):
        _ = new(place, tmp_path / "run", {"data.tokenizer": str(tmp_path / "tokens" / TOKENIZER)}).corpus


def test_a_run_that_has_begun_otherwise_is_another(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "base", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"init\.from=.*, but it has begun without"):
        new(place, run, {"train.steps": STEPS + 1}, text="text").train()


def test_a_refusal_names_this_way_on(place: Path) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)sequence was 16 and is 8.*init\.from={re.escape(str(place))}/base"):
        Trainer(Config.from_dict(tree(place, "base"), {"batch.sequence": 8, "train.steps": STEPS + 1})).train()


def test_a_start_that_saved_nothing_begins_with_the_same_again(place: Path, tmp_path: Path) -> None:
    """Meanwhile the other run has gone on."""
    base, run = shutil.copytree(place / "base", tmp_path / "base"), tmp_path / "run"
    begun = new(place, run, {"init.from": str(base)})
    _ = [float(metrics.loss) for metrics in begun.steps(0)]
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    Trainer(Config.load(base / "config.yaml", {"train.steps": STEPS + 1})).train()
    again = new(place, run, {"init.from": str(base)})
    assert again.origin is not None
    assert again.origin.saved_step == STEPS
