"""Offload in two processes, each with its own host memory and its own file: as one process without offload trains."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.commands import ROOT
from tests.trainer.offload.one_of_two import train
from trainer.config import Config

pytestmark = pytest.mark.optimised  # as the other processes compile

BASE: dict[str, Any] = {
    "model": {"layers": 1, "hidden": 16, "heads": 2, "ffn": 20, "vocab": 29, "context": 8},
    "mesh": {"data": 2},
    "zero": {"stage": 2},
    "batch": {"global": 4, "sequence": 8},
    "optimizer": {"learning_rate": 0.01, "schedule": "constant"},
    "train": {"steps": 2},
}


def test_they_train_as_one_does_without_offload(tmp_path: Path) -> None:
    offload = {"optimizer": "nvme", "path": str(tmp_path), "bucket": 10_000, "direct_io": False}
    tree = json.dumps(BASE | {"offload": offload, "run": {"name": "two"}})
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.trainer.offload.one_of_two"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    files = [tmp_path / f"{index}.npz" for index in range(2)]
    processes = [
        subprocess.Popen([*command, str(file), tree, address, str(index)], cwd=ROOT, env=environment)
        for index, file in enumerate(files)
    ]
    try:
        alone = train(Config.from_dict(BASE))
        assert [process.wait(timeout=240) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    shards: dict[str, np.ndarray] = {}
    for file in files:
        found = dict(np.load(file))
        np.testing.assert_array_equal(found.pop("losses"), alone["losses"])
        assert not shards.keys() & found.keys()
        shards |= found
    assert shards.keys() == alone.keys() - {"losses"}
    for name, shard in shards.items():
        np.testing.assert_array_equal(shard, alone[name], err_msg=name)
    assert not list(tmp_path.glob("*.offload"))
