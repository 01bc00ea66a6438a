"""`Trainer` as a script or a notebook meets it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from models.decoder import Decoder
from tests.trainer import small
from trainer import Config, ConfigError, Trainer
from trainer.data.batches import TrainBatches
from trainer.data.indexed import IndexedWriter
from trainer.data.tokenizer import Tokenizer
from trainer.display import PlainDisplay
from trainer.generate import continuation
from trainer.metrics import StepMetrics
from trainer.report import page
from trainer.report.folder import read_run
from trainer.report.goodput import goodput

ROOT = Path(__file__).parents[2]
FIELDS = {
    "step",
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens",
    "tokens_per_second",
    "step_seconds",
    "model_flops_per_second",
    "loss_scale",
    "skipped_steps",
    "data_seconds",
    "host_bytes",
}
"""Of a logged step, on a CPU in float32."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_text(tmp_path_factory.mktemp("user") / "text")


@pytest.fixture(scope="module")
def trained(text: Path) -> Trainer:
    """Four steps, with all that `train` does beside them."""
    trainer = Trainer(Config.from_dict(small.tree(text, text.parent / "run")))
    trainer.train()
    return trainer


def records(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """metrics.jsonl: of training, and of evaluation; without when, which is never the same."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(row.pop("time") > 0 for row in rows)
    return [row for row in rows if "loss" in row], [row for row in rows if "eval_loss" in row]


def test_making_one_touches_no_device(trained: Trainer) -> None:
    """Where JAX can start no device at all, configs are read, errors told, and a run's folder is found."""
    code = """if True:
        import sys
        from trainer import Config, ConfigError, Trainer
        Trainer(Config.load("configs/quickstart.yaml"))
        run = Trainer.from_run(sys.argv[1])
        print(run.step)
        for overrides in ({"model.heads": 3}, {"mesh.virtual_devices": None}):
            try:
                Trainer(Config.load("configs/quickstart.yaml", overrides)).lower_step()
            except ConfigError as error:
                print(error)
    """
    result = subprocess.run(
        [sys.executable, "-c", code, str(trained.folder)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "absent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    step, heads, devices = result.stdout.splitlines()
    assert step == "4"
    assert "model.heads=3" in heads
    assert devices.startswith("JAX finds no devices")
    assert "JAX_PLATFORMS (now absent)" in devices


def test_a_logged_step_says_what_it_promises_and_once(trained: Trainer) -> None:
    steps, evaluations = records(trained.folder)
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert all(set(row) == FIELDS for row in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert [row["step"] for row in evaluations] == [2, 4]
    names = {"step", "eval_loss", "eval_perplexity", "eval_tokens", "eval_bits_per_byte", "eval_bytes"}
    assert all(set(row) == names for row in evaluations)


def test_the_folder_tells_what_was_run(trained: Trainer) -> None:
    assert Config.load(trained.folder / "config.yaml") == trained.config
    start = json.loads((trained.folder / "environment.json").read_text())[-1]
    assert start["data_hash"] == trained.corpus.hash
    assert start["devices"] == ["cpu:cpu"] * 8
    (events,) = (trained.folder / "tensorboard").iterdir()
    for name in (b"loss", b"grad_norm", b"eval_bits_per_byte"):
        assert name in events.read_bytes()
    assert trained.checkpoints.steps() == [2, 4]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (4, "nothing to do: the run is at step 4 of 4; raise train.steps"),
        (3, "nothing to do: the run is at step 4, past train.steps=3, and stays as it is; give more than 4 to go on"),
    ],
)
def test_a_run_that_has_finished_stays_as_it_is(
    trained: Trainer, capsys: pytest.CaptureFixture[str], steps: int, message: str
) -> None:
    def contents() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in trained.folder.rglob("*") if file.is_file()}

    before = contents()
    Trainer(Config.from_dict(trained.config.to_dict(), {"train.steps": steps})).train()
    assert message in capsys.readouterr().out
    assert contents() == before


def test_a_run_of_no_steps_saves_its_initial_values(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are measured and write; and a longer run goes on from them."""
    tree = small.tree(text, tmp_path / "run")
    Trainer(Config.from_dict(tree, {"train.steps": 0})).train()
    assert f"nothing to train: step 0 is saved in {tmp_path / 'run'}" in capsys.readouterr().out
    untrained = Trainer.from_run(tmp_path / "run")
    assert (untrained.step, untrained.tokens) == (0, 0)
    assert untrained.evaluate()["loss"] == pytest.approx(math.log(small.VOCAB), abs=0.1)
    assert untrained.generate("def ", max_tokens=3).startswith("def ")
    Trainer(Config.from_dict(tree, {"train.steps": 1, "train.eval_every": None})).train()
    assert Trainer.from_run(tmp_path / "run").step == 1


@pytest.fixture(scope="module")
def by_hand(text: Path) -> Trainer:
    """Two steps, saved."""
    trainer = Trainer(Config.from_dict(small.tree(text, text.parent / "by hand: 1")))
    list(trainer.steps(2))
    trainer.save()
    return trainer


def test_steps_are_scalars_on_the_devices(by_hand: Trainer, trained: Trainer) -> None:
    assert by_hand.step == 2
    assert by_hand.checkpoints.steps() == [2]  # a script may end here
    (metrics,) = by_hand.steps(1)
    assert by_hand.step == 3
    assert all(isinstance(value, jax.Array) and value.shape == () for value in metrics)
    assert len(metrics.loss.sharding.device_set) == 8
    assert float(metrics.loss) == records(trained.folder)[0][2]["loss"]


def test_what_is_saved_by_hand_is_a_run_that_goes_on(by_hand: Trainer, trained: Trainer) -> None:
    """From its own folder alone, whose name is not one that YAML likes; as if it had never stopped."""
    expected = records(trained.folder)[0]
    again = Trainer.from_run(by_hand.folder)
    assert again.step == 2
    assert again.tokens == expected[1]["tokens"]
    again.save()  # a second time is not another step
    assert again.checkpoints.steps() == [2]
    again.train(2)
    rest, _ = records(again.folder)
    assert [row["loss"] for row in rest] == [row["loss"] for row in expected[2:]]
    assert [row["tokens"] for row in rest] == [row["tokens"] for row in expected[2:]]
    assert again.step == 4


def test_a_resumed_run_tells_no_step_twice(trained: Trainer, tmp_path: Path) -> None:
    """It was killed after step 4 was told and before it was saved."""
    run = shutil.copytree(trained.folder, tmp_path / "run")
    shutil.rmtree(run / "checkpoints/4")
    before, starts = records(run)[0], len(json.loads((run / "environment.json").read_text()))
    Trainer.from_run(run, {"train.log_every": 1}).train()
    after, evaluations = records(run)
    assert [row["step"] for row in after] == [1, 2, 3, 4]
    assert [row["loss"] for row in after] == [row["loss"] for row in before]
    assert [row["step"] for row in evaluations] == [2, 4]
    assert len(json.loads((run / "environment.json").read_text())) == starts + 1


def test_a_failure_waits_for_the_checkpoint_under_way(
    trained: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(display: PlainDisplay, metrics: StepMetrics) -> None:
        if metrics.step == 3:
            raise OSError("the terminal is gone")

    monkeypatch.setattr(PlainDisplay, "step", step)
    trainer = Trainer(Config.from_dict(trained.config.to_dict(), {"run.dir": str(tmp_path / "run")}))
    with pytest.raises(OSError, match="the terminal is gone"):
        trainer.train()
    assert trainer.checkpoints.steps() == [2]


def test_steps_refuses_another_run_before_it_trains(trained: Trainer) -> None:
    other = Trainer(Config.from_dict(trained.config.to_dict(), {"seed": 1}))
    with pytest.raises(ConfigError, match=r"holds another run:\n  seed was 0 and is 1"):
        other.steps(1)


def test_a_number_of_steps_is_not_negative(trained: Trainer) -> None:
    with pytest.raises(ConfigError, match="steps=-1: a number of steps is 0 or more"):
        trained.steps(-1)
    with pytest.raises(ConfigError, match="steps=-1: a number of steps is 0 or more"):
        trained.train(-1)
    assert list(trained.steps(0)) == []
    assert list(trained.steps()) == []  # the run has finished
    assert trained.step == 4


def test_the_state_is_logical_arrays_by_name(trained: Trainer) -> None:
    state = trained.state
    declared = {name: leaf.shape for name, leaf in Decoder(trained.config.model).declarations.items()}
    for prefix in ("parameters.", "optimizer.mu.", "optimizer.nu."):
        shapes = {name.removeprefix(prefix): x.shape for name, x in state.items() if name.startswith(prefix)}
        assert shapes == declared
    assert declared["layers.attention.query.weight"] == (1, 32, 2, 16)
    assert int(state["step"]) == 4
    assert np.isfinite(state["parameters.embedding.weight"]).all()


def test_the_step_is_lowered_for_devices_that_are_not_all(text: Path) -> None:
    config = Config.from_dict(small.tree(text, text.parent / "never"), {"mesh": {"data": -1}, "zero.stage": 3})
    trainer = Trainer(config, jax.devices()[:2])
    lowered = trainer.lower_step()
    assert "mhlo.num_partitions = 2" in lowered.as_text()
    assert trainer.config.mesh.data == 2
    assert not trainer.folder.exists()
    with pytest.raises(ConfigError, match="needs a multiple of 2 devices, and there are 3; use 2 devices"):
        Trainer(Config.from_dict(config.to_dict(), {"mesh.tensor": 2}), jax.devices()[:3]).lower_step()


def test_what_is_measured_agrees_with_itself(trained: Trainer) -> None:
    """All of the held-out text: every token counts, the ends of documents too."""
    values = Trainer.from_run(trained.folder, {"train.eval_batches": 1000}).evaluate()
    heldout, corpus = trained.corpus.heldout_text(), trained.corpus
    assert values["tokens"] == sum(len(corpus.indexed.document(index)) for index in corpus.heldout_documents)
    assert values["bytes"] == len(heldout)
    assert values["perplexity"] == pytest.approx(math.exp(values["loss"]))
    assert values["bits_per_byte"] == pytest.approx(values["loss"] * values["tokens"] / math.log(2) / values["bytes"])


def test_another_text_is_measured_whole_in_the_runs_own_tokens(trained: Trainer, tmp_path: Path) -> None:
    """The text that it was trained on is gone; the other has words whose tokenizer would differ."""
    run = shutil.copytree(trained.folder, tmp_path / "run")
    other = tmp_path / "other.txt"
    other.write_text("quite other words, " * 30, encoding="utf-8")
    trainer = Trainer.from_run(run, {"data.path": str(other)})
    values = trainer.evaluate()
    ids = trained.tokenizer.encode(other.read_text())
    assert values["tokens"] == len(ids) + 1  # the end of the document
    assert values["loss"] > trained.evaluate()["loss"]
    with pytest.raises(ConfigError, match=r"baselines .* leave data.path out"):
        trainer.baselines()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data.holdout": 0.5}, "measured on no other; leave data.holdout out"),
        ({"data.tokenizer": "other.json"}, "tokenizer.json alone; leave data.tokenizer out"),
        ({"data.end_token": "<end>"}, "leave data.end_token out"),
        ({"model.hidden": 16}, "is a checkpoint of another model"),
        ({"data.path": "none.txt"}, "none.txt does not exist"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_what_does_not_fit_the_trained_model_is_refused(
    trained: Trainer, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.from_run(trained.folder, overrides).evaluate()


def test_nothing_held_out_is_said(trained: Trainer, tmp_path: Path) -> None:
    config = Config.from_dict(
        trained.config.to_dict(), {"data.holdout": 0, "train.eval_every": None, "run.dir": str(tmp_path / "run")}
    )
    with pytest.raises(ConfigError, match="no text is held out to evaluate on"):
        Trainer(config).evaluate()


def test_no_token_to_count_is_said(trained: Trainer, tmp_path: Path) -> None:
    """Documents of one token each: no target stands in the document of its input."""
    with IndexedWriter(tmp_path / "pair", np.dtype("<u2")) as writer:
        for token in range(10):
            writer.add(np.array([token]))
    with pytest.raises(ConfigError, match="no token after their first"):
        Trainer.from_run(trained.folder, {"data.path": str(tmp_path / "pair")}).evaluate()


def test_text_is_a_function_of_the_seed(trained: Trainer) -> None:
    one, again, two = (trained.generate("def ", max_tokens=12, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one != two
    assert one.startswith("def ")
    assert len(one) > len("def ")


def test_the_likeliest_token_is_no_chance(trained: Trainer) -> None:
    likeliest = trained.generate("def ", max_tokens=12, temperature=0)
    assert {trained.generate("def ", max_tokens=12, temperature=0, seed=seed) for seed in (1, 2)} == {likeliest}
    assert trained.generate("def ", max_tokens=12, top_k=1, seed=3) == likeliest
    assert trained.generate("def ", max_tokens=12, top_k=10**12, seed=1) == trained.generate(
        "def ", max_tokens=12, seed=1
    )


def test_one_program_writes_every_length(trained: Trainer) -> None:
    before = trained.generate("x", max_tokens=1)
    texts = [trained.generate(prompt, max_tokens=count, top_k=5) for prompt in ("", "x", "def x y") for count in (3, 9)]
    assert len({before, *texts}) == 7
    assert trained.program.generate._cache_size() == 1  # type: ignore[attr-defined]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ids of each text that is written from now on."""
    ids: list[list[int]] = []

    def spy(tokenizer: Tokenizer, prompt: np.ndarray, new: np.ndarray) -> str:
        ids.append(list(map(int, new)))
        return continuation(tokenizer, prompt, new)

    monkeypatch.setattr("trainer.generate.continuation", spy)
    return ids


def test_a_text_ends_with_its_document_or_the_context(
    trained: Trainer, written: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.generate("x", max_tokens=10**6)
    (ids,) = written
    assert len(ids) == small.CONTEXT - 1
    end = ids[5]
    other = dataclasses.replace(trained.tokenizer, eod=end, start=end)
    monkeypatch.setattr(Trainer, "tokenizer", property(lambda _: other))
    trained.generate("x", max_tokens=10**6)
    assert written[1] == ids[: ids.index(end)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": "\udcff"}, "the prompt is not UTF-8"),
        ({"temperature": float("inf")}, "temperature=inf: use 0"),
        ({"prompt": "a b " * 20}, "tokens, and the model's context holds 32; use at most 31"),
        ({"max_tokens": -1}, "max_tokens=-1: use 0 or more"),
        ({"temperature": -0.5}, "temperature=-0.5: use 0"),
        ({"temperature": 1e39}, "temperature=1e\\+39: use 0"),
        ({"temperature": 1e-50}, "temperature=1e-50: use 0 .*; float32, which devices compute in, makes 0 of it"),
        ({"top_k": 0}, "top_k=0: use 1 or more"),
        ({"seed": -1}, "seed=-1: use one from 0"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_what_cannot_be_written_is_refused(trained: Trainer, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained.generate(**{"prompt": "x", **arguments})


def test_text_needs_no_corpus(trained: Trainer, tmp_path: Path) -> None:
    """The text and its cache are gone; the model writes what it wrote, on fewer devices."""
    run = shutil.copytree(trained.folder, tmp_path / "run")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(trained.config.data.path), "gone"))
    alone = Trainer.from_run(run, {"data.cache": str(tmp_path / "cache"), "mesh": {"data": 1}})
    alone._devices = jax.devices()[:1]
    assert alone.generate("def ", max_tokens=12, temperature=0) == trained.generate(
        "def ", max_tokens=12, temperature=0
    )
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ConfigError, match="gone does not exist"):
        alone.evaluate()


def test_a_run_resumed_in_float16_starts_its_loss_scale(text: Path, tmp_path: Path) -> None:
    """Saved in float32 it is 1: from there, the first overflow would end the run."""
    tree = small.tree(text, tmp_path / "run")
    first = Trainer(Config.from_dict(tree))
    list(first.steps(1))
    first.save()
    tree["precision"] = {"compute": "float16", "loss_scale": {"initial_power": 12}}
    assert float(Trainer(Config.from_dict(tree)).state["loss_scale.scale"]) == 2**12


def test_a_held_out_part_too_short_to_measure_anything_is_found_before_it_trains(tmp_path: Path) -> None:
    """Its evaluation would fail, perhaps thousands of paid steps later."""
    with IndexedWriter(tmp_path / "pair", np.dtype("<u2")) as writer:
        for document in ([5, 6, 7] * 50, [5, 6], [8], [9]):
            writer.add(np.array(document))
    overrides = {"data.path": str(tmp_path / "pair"), "data.holdout": 0.5}
    tree, run = small.tree(tmp_path / "text", tmp_path / "run"), tmp_path / "run"
    with pytest.raises(ConfigError, match=r"train\.eval_every=2, but the held-out text has 2 tokens, each the first"):
        Trainer(Config.from_dict(tree, overrides)).train()
    assert not run.exists()


def test_little_held_out_text_is_said_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "one.txt").write_text("a b c " * 40, encoding="utf-8")
    tree = small.tree(tmp_path / "one.txt", tmp_path / "run")
    Trainer(Config.from_dict(tree, {"train.steps": 2, "data.holdout": 0.05})).train()
    said = capsys.readouterr().out
    assert "tokens are held out, less than one sequence of 16" in said
    assert said.index("less than one sequence") < said.index("compiling")


def test_an_evaluation_that_fails_saves_first(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps before it have been paid for."""

    def fail(self: Trainer) -> dict[str, float]:
        raise ValueError("no room for the logits")

    monkeypatch.setattr(Trainer, "evaluate", fail)
    tree = small.tree(text, tmp_path / "run")
    trainer = Trainer(Config.from_dict(tree, {"train.checkpoint_every": None}))
    with pytest.raises(ValueError, match="no room for the logits"):
        trainer.train()
    assert trainer.checkpoints.newest() == 2
    assert Trainer(Config.from_dict(tree)).step == 2


@pytest.mark.parametrize(("key", "value"), [("data.path", ""), ("data.path", [" "]), ("run.dir", ""), ("seed", 2**32)])
def test_empty_names_and_huge_seeds_are_refused(text: Path, tmp_path: Path, key: str, value: object) -> None:
    tree = small.tree(text, tmp_path / "run")
    with pytest.raises(ConfigError, match=key):
        _ = Trainer(Config.from_dict(tree, {key: value})).corpus


def test_time_that_devices_wait_for_data_is_logged(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, run = TrainBatches.rows, text.parent / "late"

    def late(self: TrainBatches, step: int, low: int, high: int) -> dict[str, Any]:
        while step and len((run / "metrics.jsonl").read_text().splitlines()) < step:
            time.sleep(0.001)
        time.sleep(0.05)  # after the step before is logged
        return rows(self, step, low, high)

    monkeypatch.setattr(TrainBatches, "rows", late)
    trainer = Trainer(Config.from_dict(small.tree(text, run) | {"train": {"steps": 3, "log_every": 1}}))
    trainer.train()
    first, *others = records(run)[0]
    assert first["data_seconds"] == 0, "the first batch is part of the start"
    assert all(0.05 <= row["data_seconds"] <= row["step_seconds"] for row in others)


def test_a_run_has_its_report(trained: Trainer) -> None:
    run = read_run(trained.folder)
    spent = goodput(run)
    assert spent
    assert spent.parts["compiling"] > 0
    assert spent.parts["evaluation"] > 0
    assert 0 < spent.share < 1
    text = page(run, time.time())
    assert "small is finished: step 4 of 4" in text
    assert "8 × cpu:cpu" in text
