"""A key or a password is refused where it would be kept, and is shown nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainer.cli import app
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.run_folder import RunFolder, describe_environment
from trainer.secrets import HIDDEN, hide, without_secrets

SECRET = "s3cr3t0123456789"
REFUSED: dict[str, dict[str, Any]] = {
    "run.wandb.api_key": {"run": {"wandb": {"project": "p", "api_key": SECRET}}},
    "run.wandb.settings.api_key": {"run": {"wandb": {"settings": {"api_key": SECRET}}}},
    "run.wandb.settings.x_extra_http_headers.Authorization": {
        "run": {"wandb": {"settings": {"x_extra_http_headers": {"Authorization": f"Bearer {SECRET}"}}}}
    },
    "run.wandb.settings.base_url": {"run": {"wandb": {"settings": {"base_url": f"https://me:{SECRET}@example.org"}}}},
    "run.wandb.notes": {"run": {"wandb": {"notes": f"with hf_{SECRET}{SECRET}"}}},
    "data.path": {"data": {"path": ["a.txt", f"s3://me:{SECRET}@bucket/text.jsonl"]}},
    "data.tokenizer": {"data": {"tokenizer": f"https://example.org/tokenizer.json?sig=1&access_token={SECRET}"}},
    "wandb_api_key": {"wandb_api_key": SECRET},
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_secret_in_a_config_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.from_dict(REFUSED[key])
    assert str(refused.value).startswith(f"{key}: ")
    assert "leave it out" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_what_to_do_instead_is_said_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"run:\n  wandb:\n    project: p\n    api_key: {SECRET}\n")
    with pytest.raises(ConfigError, match=r"a\.yaml:4: run\.wandb\.api_key: .* environment variable WANDB_API_KEY"):
        Config.load(file)


@pytest.mark.parametrize(
    "override",
    [
        f"run.wandb.api_key={SECRET}",
        f"run.wandb={{project: p, api_key: {SECRET}}}",
        f"run.wandb={{api_key: {SECRET}",  # not YAML
        f"run.wandb_key.secret={SECRET}",  # no such key
        f'data.path="https://me:{SECRET}@example.org/a.txt"',
    ],
)
def test_the_command_line_shows_none(override: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("seed: 1\n")
    result = CliRunner().invoke(app, ["show", str(file), override])
    assert result.exit_code == 2
    assert result.output.startswith("error: command line: ")
    assert SECRET not in result.output


@pytest.mark.parametrize(
    "tree",
    [
        {"run": {"wandb": {"project": "p", "entity": "e", "tags": ["token", "secret"], "settings": {"silent": True}}}},
        {"run": {"wandb": {"api_key": None, "config": {"tokens": 3, "tokenizer": "a.json", "author": "me"}}}},
        {"data": {"path": "a:b@c/d.txt", "text_key": "text", "tokenizer": "tokenizer.json"}},
        {"data": {"tokenizer": "tokenizer.json", "end_token": "<end>", "start_token": "<begin>"}},
    ],
)
def test_what_is_no_secret_passes(tree: dict[str, Any]) -> None:
    made = Config.from_dict(tree)
    assert without_secrets(made.to_dict()) == made.to_dict()


def test_a_record_is_shown_without_its_secrets() -> None:
    record = {"a": [f"https://me:{SECRET}@h/x", 1], "password": SECRET, "b": {"auth_token": SECRET, "n": None}}
    assert without_secrets(record) == {
        "a": [f"https://{HIDDEN}@h/x", 1],
        "password": HIDDEN,
        "b": {"auth_token": HIDDEN, "n": None},
    }


def test_the_environment_reaches_no_file_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@proxy")
    config = Config.from_dict({"run": {"wandb": {"project": "p"}}})
    RunFolder(tmp_path / "run").open(config.to_dict(), describe_environment(["cpu:cpu"], None))
    files = list((tmp_path / "run").iterdir())
    assert len(files) == 2
    assert not any(SECRET in file.read_text() for file in files)


@pytest.mark.parametrize(
    "text",
    [
        "a-b.c/d_e:f",
        "loss 3.25 at step 4",
        "data.end_token=<end> 'start_token': '<s>'",
        "tokens: 5, tokenizer: a.json",
        "git@host:me/it",
    ],
)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert hide(text) == text
