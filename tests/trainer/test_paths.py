"""Paths that a user gives: a home folder is one everywhere, and what is on no disk here is refused everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from typer.models import OptionInfo
from typer.testing import CliRunner

from trainer.cli import BENCHES, COMMANDS, app
from trainer.config import Config
from trainer.config_errors import all_keys, fields, kinds
from trainer.data.prepare import prepare
from trainer.errors import ConfigError
from trainer.paths import absolute, local
from trainer.run_mark import HEADER
from trainer.trainer import Trainer

PATHS = {
    "data.path",
    "data.tokenizer",
    "data.cache",
    "init.from",
    "run.dir",
    "run.compile_cache",
    "offload.path",
    "pipeline.schedule",
}
"""The keys that are paths."""
NO_PATHS = {"model.preset", "data.text_key", "data.end_token", "data.start_token", "run.name"}
"""The other keys that are text."""
MORE = {
    "offload.path": ["offload.optimizer=nvme"],
    "pipeline.schedule": ["mesh.pipeline=2", "mesh.virtual_devices=2"],
}
"""Overrides with which a key has an effect."""


def text_keys() -> Iterator[str]:
    for key in all_keys(Config):
        section: Any = Config
        for name in key[:-1]:
            section = fields(section)[name].annotation
        if str in kinds(fields(section)[key[-1]].annotation):
            yield ".".join(key)


def test_of_every_key_that_is_text_it_is_known_whether_it_is_a_path() -> None:
    assert {*text_keys()} == PATHS | NO_PATHS


@pytest.mark.parametrize("key", [*sorted(PATHS), "mesh"])
def test_an_address_is_refused_with_its_key(tmp_path: Path, key: str) -> None:
    """It made a local folder `gs:`."""
    (tmp_path / "x.yaml").write_text("")
    with pytest.raises(ConfigError, match=rf"{key}[=:].*an address.*this machine alone"):
        Config.load(tmp_path / "x.yaml", [f"{key}=gs://bucket/a.csv", *MORE.get(key, [])])


def test_of_a_list_each_is_looked_at() -> None:
    with pytest.raises(ConfigError, match=r"data\.path: 'hf://a/b' is an address"):
        Config.from_dict({"data": {"path": ["a.txt", "hf://a/b"]}})


def test_home_is_written_out_in_every_key(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (home / "text.txt").write_text("some text " * 100, encoding="utf-8")
    config = Config.from_dict(
        {
            "run": {"dir": "~/runs/a"},
            "data": {"path": ["~/text.txt"], "tokenizer": "~/tokenizer.json", "cache": "~/data"},
            "offload": {"path": "~/disk", "optimizer": "nvme"},
        }
    )
    assert config.run.folder == str(home / "runs/a")
    assert config.data.path == [str(home / "text.txt")]
    assert config.data.tokenizer == str(home / "tokenizer.json")
    assert config.offload.path == str(home / "disk")
    prepare(Config.from_dict({"data": {"path": "~/text.txt", "cache": "~/data"}}).data, 300, lambda _: None)
    assert any((home / "data").iterdir())
    assert not any(tmp_path.iterdir())


def test_home_is_written_out_for_files_of_python(home: Path) -> None:
    (home / "x.yaml").write_text("mesh: ~/mesh.yaml")
    (home / "mesh.yaml").write_text("data: 2")
    assert Config.load("~/x.yaml").mesh.data == 2
    with pytest.raises(ConfigError, match=rf"{home}/nothing holds no config.yaml"):
        Trainer.from_run("~/nothing")


def test_nobodys_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no home folder of '~nobody-of-that-name' is known; write \./~nobody"):
        local("~nobody-of-that-name/x")
    Path("~draft.txt").write_text("")
    assert local("~draft.txt") == "~draft.txt"


def path_arguments() -> Iterator[tuple[str, Any]]:
    """(command, what Typer knows of its parameter) for each of all commands that is a path."""
    for name, command in [*COMMANDS.items(), *((f"bench {name}", bench) for name, bench in BENCHES.items())]:
        for hint in get_type_hints(command, include_extras=True).values():
            if get_origin(hint) is Annotated and "Path" in str(get_args(hint)[0]):
                yield name, get_args(hint)[1]


NEEDED = {
    "launch": "-- train x.yaml",
    "slurm": "--nodes 1 --gpus-per-node 1",
    "search": "--gpus 1",
    "generate": "--prompt x",
}
"""What else a command wants, besides a config or a run."""


@pytest.mark.parametrize(("command", "parameter"), [*path_arguments()], ids=lambda x: getattr(x, "metavar", x))
def test_an_address_is_refused_as_an_argument(command: str, parameter: Any) -> None:
    given = ["gs://bucket/a.csv"]
    if isinstance(parameter, OptionInfo):
        given = [parameter.default, *["3"] * (parameter.metavar == "STEP DIR"), *given]
        given += ["x.yaml"] * (command not in ("launch", "bench offload"))
    result = CliRunner().invoke(app, [*command.split(), *given, *NEEDED.get(command, "").split()])
    assert "is an address" in result.output, result.output
    assert result.exit_code == 2


def test_the_same_file_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "[a]"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert absolute("stdlib") == "stdlib"
    assert absolute("/x") == "/x"
    assert absolute("x") == f"{folder}/x"
    assert absolute("*.txt") == f"{tmp_path}/[[]a]/*.txt"


def test_a_config_that_is_resolved_means_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = {"data": {"path": ["a.txt", "stdlib"], "tokenizer": "t.json"}, "run": {"compile_cache": "xla"}}
    tree = Config.from_dict(relative, {"run.dir": "r", "init.from": "/base"}).to_dict(resolved=True)
    assert tree["data"]["path"] == [f"{tmp_path}/a.txt", "stdlib"]
    assert tree["data"]["tokenizer"] == f"{tmp_path}/t.json"
    assert tree["data"]["cache"] == "~/.cache/meshwright/data"  # of whoever goes on with it
    assert (tree["run"]["compile_cache"], tree["run"]["dir"]) == (f"{tmp_path}/xla", f"{tmp_path}/r")
    assert tree["init"]["from"] == "/base"
    assert Config.from_dict(relative).to_dict()["data"]["path"] == ["a.txt", "stdlib"]


class TestARunsOwnConfig:
    """It is of the run that stands where it stands."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder that was moved."""
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / "moved"
        folder.mkdir()
        (folder / "config.yaml").write_text(f"{HEADER}\nrun: {{name: a, dir: /old/place}}\n")
        (folder / "environment.json").write_text("[]")
        return folder

    @pytest.mark.parametrize("name", ["moved/config.yaml", "{}/config.yaml"])
    def test_wherever_it_is(self, run: Path, name: str) -> None:
        assert Path(Config.load(name.format(run)).run.folder).absolute() == run

    def test_from_within(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(run)
        assert Config.load("config.yaml").run.folder == str(run)

    def test_another_name_is_another_run(self, run: Path) -> None:
        assert Config.load(run / "config.yaml", ["run.name=b"]).run.folder == "runs/b"
        assert Config.load(run / "config.yaml", ["run.dir=c"]).run.folder == "c"
        assert Config.load(run / "config.yaml", ["run={name: b, dir: c}"]).run.folder == "c"

    def test_the_same_name_is_not(self, run: Path) -> None:
        assert Config.load(run / "config.yaml", ["run.name=a"]).run.folder == str(run)

    @pytest.mark.parametrize("lacks", ["environment.json", "header", "name"])
    def test_a_users_own_config_is_what_it_says(self, run: Path, lacks: str) -> None:
        file = run / "config.yaml"
        if lacks == "environment.json":
            (run / lacks).unlink()
        elif lacks == "header":
            file.write_text("run: {name: a, dir: /old/place}")
        else:
            file = file.rename(run / "my.yaml")
        assert Config.load(file).run.folder == "/old/place"
