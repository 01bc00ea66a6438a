"""Several hosts: two network namespaces with a name and an address each, and what one does when the other is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.trainer import small

ROOT = Path(__file__).parents[3]
LOST_AFTER = 5


def sh(command: str) -> None:
    subprocess.run(command, shell=True, check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[tuple[str, str]]]:
    """Name of the namespace, and address, of each."""
    names = [f"mw{os.getpid()}{letter}" for letter in "ab"]
    found = [(name, f"10.213.77.{number}") for number, name in enumerate(names, 1)]
    try:
        try:
            for name in names:
                sh(f"ip netns add {name}")
            sh(f"ip link add {names[0]} netns {names[0]} type veth peer name {names[1]} netns {names[1]}")
            sh("unshare --uts true")
        except (subprocess.CalledProcessError, OSError) as error:
            pytest.skip(f"network namespaces may not be made here: {error}")
        for name, address in found:
            sh(f"ip -n {name} address add {address}/24 dev {name}")
            sh(f"ip -n {name} link set {name} up")
            sh(f"ip -n {name} link set lo up")
        yield found
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class Processes:
    """A run of one process on each host."""

    def __init__(self, hosts: list[tuple[str, str]], folder: Path) -> None:
        tree = small.tree(small.write_text(folder / "text"), folder / "run")
        tree |= {"mesh": {"data": 4, "virtual_devices": 4}}
        tree["train"] = {"steps": 10**6, "log_every": 10, "checkpoint_every": None}
        (folder / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
        self.metrics = folder / "run/metrics.jsonl"
        self.all = [
            subprocess.Popen(
                # The host's name is its address, which is how gloo finds out where it can be reached.
                [
                    *(
                        "ip",
                        "netns",
                        "exec",
                        name,
                        "unshare",
                        "--uts",
                        "sh",
                        "-c",
                        'hostname "$0" && exec "$@"',
                        address,
                    ),
                    *(sys.executable, "-m", "trainer", "train", str(folder / "config.yaml")),
                ],
                cwd=ROOT,
                env=os.environ
                | {
                    "MESHWRIGHT_COORDINATOR": f"{hosts[0][1]}:29411",
                    "MESHWRIGHT_PROCESSES": "2",
                    "MESHWRIGHT_PROCESS": str(process),
                    "MESHWRIGHT_LOST_AFTER": str(LOST_AFTER),
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for process, (name, address) in enumerate(hosts)
        ]

    def wait_for_steps(self) -> None:
        deadline = time.monotonic() + 200
        while not (self.metrics.exists() and self.metrics.read_text().count("\n") > 1):
            assert all(process.poll() is None for process in self.all), self.all[0].stderr.read()  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(hosts: list[tuple[str, str]], tmp_path: Path) -> Iterator[Processes]:
    started = Processes(hosts, tmp_path)
    yield started
    started.end()


@pytest.mark.parametrize(
    ("gone", "how"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)], ids=["the first is killed", "the second stops"]
)
def test_the_other_ends_and_names_the_host_that_is_gone(
    hosts: list[tuple[str, str]], processes: Processes, gone: int, how: signal.Signals
) -> None:
    processes.wait_for_steps()
    processes.all[gone].send_signal(how)
    left = processes.all[1 - gone]
    _, said = left.communicate(timeout=30 - 20 + LOST_AFTER + 15)
    assert left.returncode == 1
    assert said.splitlines() == [
        f"error: process {gone} on {hosts[gone][1]} is lost: no sign of life for {LOST_AFTER} s (it was killed or "
        f"stopped, or its host is down); process {1 - gone} on {hosts[1 - gone][1]} ends too"
    ]


@pytest.mark.sweep
def test_a_host_that_cannot_be_reached_is_lost(hosts: list[tuple[str, str]], processes: Processes) -> None:
    """The cable is cut: no connection is closed, and nothing arrives any more."""
    processes.wait_for_steps()
    sh(f"ip -n {hosts[0][0]} link set {hosts[0][0]} down")
    ends = [process.communicate(timeout=30 - 20 + LOST_AFTER + 15)[1] for process in processes.all]
    assert [process.returncode for process in processes.all] == [1, 1]
    assert f"process 1 on {hosts[1][1]} is lost" in ends[0]
    assert f"process 0 on {hosts[0][1]} is lost: its coordinator has not answered" in ends[1]
