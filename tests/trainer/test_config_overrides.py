"""`key=value` on the command line: what it changes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.config import Config
from trainer.errors import ConfigError

TEXT = """
model: {layers: 2, vocab: 512}
recompute: full
optimizer: {name: adamw, beta2: 0.99}
run: {name: a}
data: {path: a.jsonl}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(TEXT)
    return Path("x.yaml")


def value(config: Config, key: str) -> Any:
    tree: Any = config.to_dict()
    for name in key.split("."):
        tree = tree[name]
    return tree


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("model.layers=7", "model.layers", 7),
        ("batch.global=64", "batch.global", 64),
        ("optimizer.learning_rate=1e-4", "optimizer.learning_rate", 1e-4),
        ("optimizer.clip=null", "optimizer.clip", None),
        ("optimizer.clip=", "optimizer.clip", None),
        ("mesh.data=-1", "mesh.data", -1),
        ("data.text_key=a=b", "data.text_key", "a=b"),
        ("run.tensorboard=false", "run.tensorboard", False),
        ("data.path=[a.txt, b.txt]", "data.path", ["a.txt", "b.txt"]),
        ("recompute=selective", "recompute.policy", "selective"),
        ("recompute.policy=selective", "recompute.policy", "selective"),
        ("precision={compute: bfloat16}", "precision.compute", "bfloat16"),
        ("train.profile.start=3", "train.profile.start", 3),
        ("seed=5", "seed", 5),
    ],
)
def test_a_value_is_yaml(file: Path, override: str, key: str, expected: Any) -> None:
    assert value(Config.load(file, [override]), key) == expected


def test_only_the_key_that_is_named_changes(file: Path) -> None:
    changed = Config.load(file, ["model.hidden=64"]).to_dict()
    expected = Config.load(file).to_dict()
    expected["model"]["hidden"] = 64
    assert changed == expected


def test_a_whole_section_is_replaced(file: Path) -> None:
    config = Config.load(file, ["optimizer={name: lion}", "optimizer.learning_rate=1e-5"])
    assert (config.optimizer.name, config.optimizer.beta2) == ("lion", Config().optimizer.beta2)
    assert config.optimizer.learning_rate == 1e-5


def test_a_mapping_of_dotted_keys_overrides_too(file: Path) -> None:
    assert Config.load(file, {"mesh.data": 2, "seed": 3}) == Config.load(file, ["mesh.data=2", "seed=3"])
    with pytest.raises(ConfigError, match=r"^overrides: mesh\.dta=2: unknown key; did you mean data\?"):
        Config.load(file, {"mesh.dta": 2})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mesh.tensro=4"], "command line: mesh.tensro=4: unknown key; did you mean tensor? (keys here: "),
        (["meshh.tensor=4"], "command line: meshh.tensor=4: meshh: unknown key; did you mean mesh?"),
        (
            ["model.layers=two"],
            "command line: model.layers=two: expected a whole number (at least 1 and at most 10000), got",
        ),
        (["recompute=ful"], "command line: recompute=ful: recompute.policy: expected one of none, "),
        (["optimizer={nam: sgd}"], "command line: optimizer={nam: sgd}: optimizer.nam: unknown key; did you mean "),
        (["mesh.tensor"], "command line: mesh.tensor: expected key=value, such as mesh.tensor=4"),
        (["=4"], "command line: =4: expected key=value"),
        (["mesh..tensor=4"], "command line: mesh..tensor=4: expected key=value"),
        (["seed=1", "seed=1"], "command line: seed=1: seed is set by 'seed=1' as well; keep one"),
        (
            ["recompute=full", "recompute.policy=none"],
            "command line: recompute.policy=none: recompute.policy is set by 'recompute=full' as well",
        ),
        (
            ["optimizer={name: sgd}", "optimizer.name=lion"],
            "command line: optimizer.name=lion: optimizer.name is set by 'optimizer={name: sgd}' as well",
        ),
        (
            ["seed.x=1"],
            "command line: seed.x=1: seed: expected a whole number (at least 0 and below 4294967296), got {",
        ),
        (["run.name.x=1"], "command line: run.name.x=1: run.name is 'a' (x.yaml:5), which has no keys"),
        (["data.path=*.txt"], "command line: data.path=*.txt: not YAML: "),
        (["model.hidden=250"], "command line: model.hidden=250: model.hidden=250 does not divide into model.heads=4"),
        (["mesh=none.yaml"], "command line: mesh=none.yaml: mesh: no file 'none.yaml' in "),
        (
            ["model.preset=gpt2"],
            "command line: model.preset=gpt2: x.yaml sets model.layers, model.vocab, which would hide the preset's",
        ),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_what_is_wrong_is_said_of_the_override(file: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config.load(file, overrides)
    assert str(error.value).startswith(message)


def test_the_way_out_that_a_hidden_preset_is_told_works(file: Path) -> None:
    assert Config.load(file, ["model={preset: gpt2}"]).model.layers == 12


class TestPreset:
    """A preset's fields stand under the config's own, one by one."""

    PRESET = Config.from_dict({"model": {"preset": "llama3.2-1b"}}).model

    def test_gives_every_size(self) -> None:
        assert (self.PRESET.layers, self.PRESET.hidden, self.PRESET.preset) == (16, 2048, "llama3.2-1b")

    def test_is_overridden_one_by_one(self) -> None:
        model = Config.from_dict({"model": {"preset": "llama3.2-1b", "layers": 7}}, ["model.hidden=512"]).model
        assert (model.layers, model.hidden, model.ffn) == (7, 512, self.PRESET.ffn)

    def test_is_overridden_inside_its_sections(self) -> None:
        scaling = Config.from_dict(
            {"model": {"preset": "llama3.2-1b", "rope_scaling": {"factor": 4}}}
        ).model.rope_scaling
        assert scaling is not None
        assert self.PRESET.rope_scaling is not None
        assert scaling.factor == 4
        assert scaling.original_context == self.PRESET.rope_scaling.original_context

    def test_can_be_changed_for_another(self) -> None:
        config = Config.from_dict({"model": {"preset": "llama3.2-1b"}}, ["model.preset=gpt2"])
        assert config == Config.from_dict({"model": {"preset": "gpt2"}})
