"""What an offloaded optimizer takes on this machine: measured in small, told, and proposed as a config's part."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import yaml

from trainer.bench import offload, show_offload
from trainer.bench.offload import Setting, proposed
from trainer.config import Config
from trainer.errors import ConfigError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much less than what is worth measuring, of the same kind."""
    monkeypatch.setattr(offload, "IN_MEMORY", 2**12)
    monkeypatch.setattr(offload, "ON_DISK", 2**13)
    monkeypatch.setattr(offload, "SECONDS", 1e-3)
    for module in (offload, show_offload):
        monkeypatch.setattr(module, "BUCKETS", (2**11, 2**10))


def config_in(text: str) -> Config:
    """What the user would paste, as a config."""
    model = {"layers": 1, "hidden": 16, "heads": 2, "vocab": 32, "context": 16}
    return Config.from_dict(
        {"model": model, "batch": {"sequence": 16}, **yaml.safe_load(text[text.index("offload:\n") :])}
    )


def test_updates_and_copies_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    show_offload.show_offload(None)
    text, progress = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert [rows[name][1] for name in ("adamw", "lion", "sgd")] == ["12", "8", "8"]
    assert rows["1024"][2:4] == rows["2048"][2:4] == ["in", "place"]
    assert "the devices are this host's CPU" in " ".join(text.split())
    assert "offload.buffers" not in text
    assert len(progress.splitlines()) == 3
    config = config_in(text).offload
    assert config.optimizer == "host"
    assert config.bucket in (1024, 2048)


def test_a_disk_is_measured_too_and_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_offload.show_offload(tmp_path)
    text = capsys.readouterr().out
    settings = {tuple(line.split()[:2]) for line in text.splitlines() if line.split()[:1] in (["1024"], ["2048"])}
    assert {(str(bucket), str(buffers)) for bucket in (1024, 2048) for buffers in (3, 4, 6)} <= settings
    assert "The disk reads" in text
    config = config_in(text).offload
    assert config.optimizer == "nvme"
    assert config.path == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_slow_disk_is_asked_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "DISK_SECONDS", 0.0)
    assert list(offload.disk_update_rates(tmp_path, lambda text: None)) == [Setting(2048, 4)]


def test_the_least_memory_of_those_that_are_as_good_is_proposed() -> None:
    rates = {Setting(4, 4): 100.0, Setting(4, 6): 101.0, Setting(1, 3): 60.0, Setting(2, 4): 95.0}
    assert proposed(rates) == Setting(2, 4)


@pytest.mark.parametrize(
    ("folder", "why"),
    [("missing", "No such file or directory"), ("file", "Not a directory")],
    ids=["missing", "a file"],
)
def test_a_folder_that_is_none_is_said_at_once(folder: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"\({why}\); name a folder on a local disk"):
        show_offload.show_offload(tmp_path / folder)


def test_a_disk_without_room_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "ON_DISK", 2**50)
    with pytest.raises(ConfigError, match=r"needs 12.00 PiB, and .* free .*; make room, or name a folder"):
        show_offload.show_offload(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_direct_io_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("trainer.offload.direct_file.fcntl.fcntl", refuse)
    with pytest.raises(ConfigError, match=r"no direct I/O .*name a folder on a local disk"):
        show_offload.show_offload(tmp_path)
