"""What a user is told about a config file: the file, the line, the key, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import Config
from trainer.errors import ConfigError

Complaint = Callable[[str], str]


@pytest.fixture
def complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complaint:
    """The text of x.yaml -> the message that it is refused with."""
    monkeypatch.chdir(tmp_path)

    def refused(text: str) -> str:
        Path("x.yaml").write_text(text)
        with pytest.raises(ConfigError) as error:
            Config.load("x.yaml")
        return str(error.value)

    return refused


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    return Config.load(file)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "{}"])
def test_the_shortest_file_is_the_default_config(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == Config()


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1e-4", 1e-4), ("1E-4", 1e-4), ("3.0e-4", 3e-4), ("2e+0", 2.0), (".5", 0.5), ("1.", 1.0), ("1", 1.0)],
)
def test_numbers_are_numbers(tmp_path: Path, text: str, rate: float) -> None:
    config = load(tmp_path, f"optimizer: {{learning_rate: {text}}}")
    assert config.optimizer.learning_rate == rate
    assert isinstance(config.optimizer.learning_rate, float)


def test_words_that_older_yaml_reads_as_switches_are_words(tmp_path: Path) -> None:
    assert load(tmp_path, "run: {name: no}").run.name == "no"
    assert load(tmp_path, "train: {steps: 1_000_000}").train.steps == 1_000_000


# What was written -> the beginning of each line of the message.
WRONG = {
    "a misspelt key": (
        "seed: 1\noptimizer:\n  learning_rat: 1e-4\n",
        ["x.yaml:3: optimizer.learning_rat: unknown key; did you mean learning_rate? (keys here: name, "],
    ),
    "a misspelt section": ("meshh: {data: 2}", ["x.yaml:1: meshh: unknown key; did you mean mesh? (keys here: "]),
    "a key in the wrong section": (
        "seed: 0\nlayers: 12\n",
        ["x.yaml:2: layers: unknown key; did you mean model.layers or pipeline.layers? (keys here: "],
    ),
    "a key like no other": ("train: {zzz: 1}", ["x.yaml:1: train.zzz: unknown key (keys here: steps, "]),
    "the name of a field that has another in files": (
        "batch: {global_: 4}",
        ["x.yaml:1: batch.global_: unknown key; did you mean global? (keys here: global, micro, sequence, parts)"],
    ),
    "a nested key": (
        "precision:\n  compute: float16\n  loss_scale:\n    windw: 3\n",
        ["x.yaml:4: precision.loss_scale.windw: unknown key; did you mean window?"],
    ),
    "a misspelt choice": (
        "optimizer: {name: adam}",
        ['x.yaml:1: optimizer.name: expected one of adamw, sgd, lion, got "adam"; did you mean adamw?'],
    ),
    "a bare word that is no policy": (
        "recompute: ful",
        ['x.yaml:1: recompute.policy: expected one of none, selective, full, got "ful"; did you mean full?'],
    ),
    "a switch for a number": (
        "train:\n  steps: true",
        ["x.yaml:2: train.steps: expected a whole number (at least 0 and at most 2147483647), got true"],
    ),
    "a number in quotes": (
        'mesh: {data: "4"}',
        [
            "x.yaml:1: mesh.data: expected a whole number (at least -1 and at most 1000000), "
            'got "4"; write it without quotes'
        ],
    ),
    "a broken whole number": (
        "seed: 1.5",
        ["x.yaml:1: seed: expected a whole number (at least 0 and below 4294967296), got 1.5"],
    ),
    "a whole number written as another": (
        "train: {steps: 1e5}",
        [
            "x.yaml:1: train.steps: expected a whole number (at least 0 and at most 2147483647), got 100000.0; "
            "write 100000"
        ],
    ),
    "a number that may be left out": (
        "optimizer: {clip: -1}",
        ["x.yaml:1: optimizer.clip: expected a number (above 0) or null, got -1"],
    ),
    "a number out of bounds": (
        "zero: {stage: 4}",
        ["x.yaml:1: zero.stage: expected a whole number (at least 0 and at most 3), got 4"],
    ),
    "a word for a switch": (
        "run: {tensorboard: yes}",
        ['x.yaml:1: run.tensorboard: expected true or false, got "yes"'],
    ),
    "neither a text nor a list": ("data: {path: 3}", ["x.yaml:1: data.path: expected text or a list, got 3"]),
    "a number among texts": (
        "data: {path: [a, 3]}",
        ['x.yaml:1: data.path: expected text or a list, got ["a", 3]'],
    ),
    "a word for a section": (
        "optimizer: adamw",
        ["x.yaml:1: optimizer: expected a section with some of the keys name, learning_rate, "],
    ),
    "nothing for a section": ("mesh:\n", ["x.yaml:1: mesh: expected a section with some of the keys pipeline, "]),
    "a list for a section": ("zero: [1]", ["x.yaml:1: zero: expected a section with some of the keys stage"]),
    "several at once, in the order of the file": (
        "zero: {stag: 1}\nmodel:\n  layers: many\nseed: -1\n",
        ["x.yaml:1: zero.stag: unknown", "x.yaml:3: model.layers: expected a whole", "x.yaml:4: seed: expected"],
    ),
    "sizes of one section that do not fit": (
        "model:\n  hidden: 250\n  heads: 4\n",
        ["x.yaml:2: model.hidden=250 does not divide into model.heads=4; use 248 or 252"],
    ),
    "an objection that names no key": (
        "seed: 0\nmodel: {hidden: 12, heads: 4}\n",
        ["x.yaml:2: rotary positions need an even head dim, not 3"],
    ),
    "a key written twice": (
        "train: {steps: 1}\nseed: 1\ntrain: {log_every: 1}\n",
        ["x.yaml:3: train: written twice, first at x.yaml:1; keep one"],
    ),
    "a nested key written twice": (
        "train:\n  steps: 1\n  steps: 1\n",
        ["x.yaml:3: train.steps: written twice, first at x.yaml:2; keep one"],
    ),
    "no mapping": ("- 1\n", ["x.yaml:1: expected `key: value` lines, got [1]"]),
    "an open bracket": ("seed: 0\nmesh: {data: 4\ntrain: {}\n", ["x.yaml:3: not YAML: "]),
    "a tab": ("train:\n\tsteps: 1\n", ["x.yaml:2: not YAML: "]),
    "a star without quotes": (
        "data:\n  path: *.jsonl\n",
        ["x.yaml:2: not YAML: expected alphabetic or numeric character, but found '.'; put text that begins"],
    ),
    "a tag": ("seed: !!python/name:os.getcwd ''\n", ["x.yaml:1: tag:yaml.org,2002:python/name:os.getcwd"]),
    "two documents": ("seed: 0\n---\nseed: 1\n", ["x.yaml:2: not YAML: "]),
    "an unknown preset": (
        "model:\n  preset: llama3-9b\n",
        ["x.yaml:2: model.preset: no preset 'llama3-9b'; did you mean llama3-8b? (presets: gpt2, "],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_its_place(case: str, complaint: Complaint) -> None:
    text, expected = WRONG[case]
    lines = complaint(text).splitlines()
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), line
    assert not any(word in "\n".join(lines).lower() for word in ("pydantic", "input", "keyword", "literal"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        Config.load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="a folder; give the path of a YAML file in it"):
        Config.load(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml: not a text file"):
        Config.load(tmp_path / "binary.yaml")
    (tmp_path / "control.yaml").write_text("seed: \x07")
    with pytest.raises(ConfigError, match=r"control\.yaml:1: not YAML"):
        Config.load(tmp_path / "control.yaml")


def test_a_bare_word_for_recompute_is_its_policy(tmp_path: Path) -> None:
    assert load(tmp_path, "recompute: full") == load(tmp_path, "recompute: {policy: full}")


class TestMeshFile:
    """`mesh: FILE`: the axes stand in a file of their own."""

    @pytest.fixture(autouse=True)
    def folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("configs/meshes").mkdir(parents=True)
        Path("configs/x.yaml").write_text("seed: 1\nmesh: meshes/m.yaml\n")

    def test_is_found_beside_the_config(self) -> None:
        Path("configs/meshes/m.yaml").write_text("data: 4\ntensor: 2\n")
        assert Config.load("configs/x.yaml").mesh.sizes["tensor"] == 2

    def test_is_found_from_here(self) -> None:
        Path("meshes").mkdir()
        Path("meshes/m.yaml").write_text("data: 8\n")
        assert Config.load("configs/x.yaml").mesh.data == 8

    def test_can_be_empty(self) -> None:
        Path("configs/meshes/m.yaml").write_text("# one device\n")
        assert Config.load("configs/x.yaml") == Config(seed=1)

    def test_errors_name_its_own_line(self) -> None:
        Path("configs/meshes/m.yaml").write_text("data: 4\ntensro: 2\n")
        with pytest.raises(ConfigError, match=r"^configs/meshes/m\.yaml:2: mesh\.tensro: unknown key; did you"):
            Config.load("configs/x.yaml")

    def test_is_missed_where_it_was_named(self) -> None:
        with pytest.raises(ConfigError, match=r"^configs/x\.yaml:2: mesh: no file 'meshes/m\.yaml' in "):
            Config.load("configs/x.yaml")

    def test_can_be_chosen_and_changed_on_the_command_line(self) -> None:
        Path("configs/meshes/m.yaml").write_text("data: 4\n")
        Path("n.yaml").write_text("replica: 2\ntensor: 2\n")
        mesh = Config.load("configs/x.yaml", ["mesh.tensor=4", "mesh=n.yaml"]).mesh
        assert (mesh.data, mesh.replica, mesh.tensor) == (1, 2, 4)
