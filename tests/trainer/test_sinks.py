"""What a run writes can be read back, and a resumed run tells no step twice."""

import json
import math
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import ConfigError
from trainer.lines import read_jsonl
from trainer.settings import RunConfig
from trainer.sinks import JsonlSink, open_sinks


def write_steps(path: Path, resumed: int, steps: list[int]) -> None:
    sink = JsonlSink(path, resumed)
    for step in steps:
        sink.write(step, {"loss": step / 2})
    sink.close()


def test_lines_are_on_disk_before_close(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl", 0)
    sink.write(1, {"loss": 2.5, "tokens": 64})
    (record,) = read_jsonl(tmp_path / "metrics.jsonl")
    assert abs(record.pop("time") - time.time()) < 60
    assert record == {"step": 1, "loss": 2.5, "tokens": 64}
    sink.close()


def test_resume_takes_back_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 0, [10, 20, 30, 40])
    write_steps(path, 20, [30, 40, 50])
    assert [record["step"] for record in read_jsonl(path)] == [10, 20, 30, 40, 50]


def test_a_start_from_scratch_leaves_nothing_of_the_last_attempt(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 0, [10, 20])
    write_steps(path, 0, [10])
    assert [record["step"] for record in read_jsonl(path)] == [10]


@pytest.mark.parametrize("torn", ['{"step": 30, "lo', '{"step": 30, "loss": 1', "{", "\0\0\0"])
def test_a_line_torn_by_a_kill_is_dropped(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 0, [10, 20])
    path.write_text(path.read_text() + torn)
    assert [record["step"] for record in read_jsonl(path)] == [10, 20]
    write_steps(path, 20, [30])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 30]


def test_what_is_not_finite_is_still_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1796000000.123456)
    sink = JsonlSink(tmp_path / "metrics.jsonl", 0)
    sink.write(1, {"loss": math.nan, "grad_norm": math.inf, "lr": 0.1})
    sink.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "time": 1796000000.123, "loss": null, "grad_norm": null, "lr": 0.1}\n'


def test_tensorboard_gets_every_number_and_purges_on_resume(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    sinks = open_sinks(RunConfig(), tmp_path, {}, step=20)
    sinks.write(30, {"loss": 2.0, "tokens": 3})
    sinks.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = [Event.FromString(record) for record in tf_records(file.read_bytes())]
    (start,) = [event for event in events if event.session_log.status == SessionLog.START]
    assert start.step == 21
    scalars = {value.tag: (event.step, value.simple_value) for event in events for value in event.summary.value}
    assert scalars == {"loss": (30, 2.0), "tokens": (30, 3.0)}


def tf_records(data: bytes) -> list[bytes]:
    """Length (8 bytes), checksum (4), the record, checksum (4)."""
    records = []
    while data:
        size = int.from_bytes(data[:8], "little")
        records.append(data[12 : 12 + size])
        data = data[16 + size :]
    return records


def test_tensorboard_can_be_switched_off(tmp_path: Path) -> None:
    open_sinks(RunConfig(tensorboard=False), tmp_path, {}, step=0).close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_wandb_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'meshwright\[wandb\]'"):
        open_sinks(RunConfig(wandb={"project": "p"}), tmp_path, {}, step=0)


class FakeWandbRun:
    def __init__(self, options: dict[str, Any]) -> None:
        self.id = options.get("id", "fresh")
        self.options = options
        self.logged: list[dict[str, Any]] = []
        self.finished = False

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axis = (name, step_metric)

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


def test_wandb_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[FakeWandbRun] = []
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: runs.append(FakeWandbRun(options)) or runs[-1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    config = RunConfig(name="a", tensorboard=False, wandb={"project": "p"})
    for step in (0, 10):
        sinks = open_sinks(config, tmp_path, {"seed": 0}, step=step)
        sinks.write(step + 10, {"loss": 1.0})
        sinks.close()
    first, second = runs
    assert first.options.items() >= {"project": "p", "name": "a", "config": {"seed": 0}}.items()
    assert "id" not in first.options
    assert second.options["id"] == "fresh"
    assert second.logged == [{"step": 20, "loss": 1.0}]
    assert second.axis == ("*", "step")
    assert second.finished


def test_a_long_file_is_rewound_at_once(tmp_path: Path) -> None:
    """What a run wrote long ago is not read again."""
    path = tmp_path / "metrics.jsonl"
    line = json.dumps({"step": 1, "loss": 2.5}).encode() + b"\n"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing, which no file system takes the room for
        file.seek(1 << 40)
        file.write(b"\n" + line + b'{"step": 2, "loss": 2.5}\n' + b'{"step": 3')
    JsonlSink(path, 1).close()
    assert path.stat().st_size == (1 << 40) + 1 + len(line)
