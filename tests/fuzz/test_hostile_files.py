"""A file that would run code in a loader that trusts it is refused in clear words, and nothing has run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding.pipeline import schedule_file
from tests.fuzz.harness import only_clear_errors
from trainer.config import Config
from trainer.data.config import DataConfig
from trainer.data.prepare import prepare
from trainer.data.tokenise import Facts
from trainer.data.tokenizer import Tokenizer
from trainer.failures.rollbacks import FILE, Rollbacks
from trainer.planner import gpu, published
from trainer.run_folder import RunFolder
from trainer.sinks import JsonlSink


class Command:
    """Unpickled, it runs a shell."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.ran}",)


CONTENTS: dict[str, Callable[[Path], bytes]] = {
    "pickle": lambda ran: pickle.dumps(Command(ran)),
    "pickle as text": lambda ran: pickle.dumps(Command(ran), protocol=0),
    "yaml": lambda ran: f"!!python/object/apply:os.system ['touch {ran}']\n".encode(),
    "yaml value": lambda ran: f"seed: !!python/object/apply:os.system ['touch {ran}']\n".encode(),
    "python": lambda ran: f"__import__('os').system('touch {ran}')\n".encode(),
    "nested": lambda ran: b"[" * 100_000,
    "nothing": lambda ran: b"",
    "a list": lambda ran: b"[1, null]\n",
    "numbers": lambda ran: b'{"step": "x"}\n{"step": 1e999}\n',
}


def _run_folder(file: Path, name: str) -> None:
    """Opens the folder of a run that has begun, with `file` under this name in it."""
    folder = file.with_name("run")
    folder.mkdir()
    RunFolder(folder).open(Config().to_dict(), {"data_hash": "a"})
    (folder / "metrics.jsonl").write_text("{}\n")
    file.rename(folder / name)
    RunFolder(folder).open(Config().to_dict(), {"data_hash": "a"})


def _data(file: Path, name: str) -> None:
    folder = file.with_name("data")
    folder.mkdir()
    file.rename(folder / name)
    (folder / "pair.bin").touch()
    path = folder / "pair" if name.startswith("pair") else folder / name
    prepare(DataConfig(path=str(path), cache=str(folder / "cache")), 300, lambda note: None)


LOADERS: dict[str, Callable[[Path], object]] = {
    "config": Config.load,
    "mesh file": lambda file: Config.load(_beside(file, f"mesh: {file}\n")),
    "gpu": lambda file: gpu.load(str(file.rename(file.with_suffix(".yaml")))),
    "published runs": published.read,
    "schedule": lambda file: schedule_file.read(file, 2, 1, 4),
    "tokenizer": Tokenizer.load,
    "facts of a corpus": Facts.load,
    "index": lambda file: _data(file, "pair.idx"),
    "tokens": lambda file: _data(file, "pair.bin"),
    "records": lambda file: _data(file, "x.jsonl"),
    "packed text": lambda file: _data(file, "x.txt.gz"),
    "config of a run": lambda file: _run_folder(file, "config.yaml"),
    "starts of a run": lambda file: _run_folder(file, "environment.json"),
    "metrics": lambda file: JsonlSink(file, 3).close(),
    "rollbacks": lambda file: Rollbacks(file.rename(file.with_name(FILE)).parent, writes=False),
}


def _beside(file: Path, text: str) -> Path:
    other = file.with_name("other.yaml")
    other.write_text(text)
    return other


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("loader", LOADERS)
def test_nothing_that_is_loaded_is_run(loader: str, content: str, tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", tmp_path / "file"
    file.write_bytes(CONTENTS[content](ran))
    with only_clear_errors(*([ValueError] if loader == "schedule" else [])):
        LOADERS[loader](file)
    assert not ran.exists()


def test_the_pickle_would_have_run(tmp_path: Path) -> None:
    pickle.loads(CONTENTS["pickle"](tmp_path / "ran"))
    assert (tmp_path / "ran").exists()
