"""How processes meet: where process 0 listens, and what is said when they cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.trainer.commands import ROOT
from trainer.errors import ConfigError
from trainer.processes import join
from trainer.processes.coordinator import Coordinator
from trainer.processes.place import Place


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_a_port_that_is_taken(taken: str) -> None:
    with pytest.raises(OSError, match=f"process 0 cannot listen at {taken}: the port is taken"):
        Coordinator(taken, 2)


def test_process_0_listens_where_it_is_told_and_nowhere_else() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    coordinator = Coordinator(f"127.0.0.1:{port}", 1)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)  # this host's too
    coordinator.shutdown()


def place(coordinator: str, on_host: int | None = None) -> Place:
    return Place("SLURM", coordinator, 2, 0, on_host)


def test_a_name_that_only_this_host_can_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Debian, where a host's own name is 127.0.1.1 to it."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(join.socket, "getaddrinfo", lambda *_: found)
    with pytest.raises(ConfigError, match=r"gpu01 is 127\.0\.1\.1 here, which no other host reaches; set"):
        join.require_reachable(place("gpu01:29400"), "gpu01:29400")
    join.require_reachable(place("gpu01:29400", on_host=2), "gpu01:29400")  # all are here
    join.require_reachable(place("localhost:29400"), "localhost:29400")  # as somebody wants it


def test_joining_comes_before_anything_else_that_jax_does() -> None:
    import jax

    jax.devices()
    with pytest.raises(
        ConfigError, match="SLURM says that this is process 0 of 2, but JAX has found its devices already"
    ):
        join.join(place("127.0.0.1:1"), None, {})


@pytest.mark.parametrize(
    ("process", "why"),
    [(0, "process 0 is there, but not all of the others"), (1, "nobody answers there (Connection refused)")],
)
def test_who_waits_in_vain_says_so(process: int, why: str) -> None:
    """Before JAX ends the process from within C++."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    join = "from trainer.processes.membership import join_others; join_others()"
    ours = {"MESHWRIGHT_COORDINATOR": address, "MESHWRIGHT_PROCESSES": "2", "MESHWRIGHT_PROCESS": str(process)}
    result = subprocess.run(
        [sys.executable, "-c", join],
        env=os.environ | ours | {"MESHWRIGHT_JOIN_SECONDS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr == f"error: process {process} of 2 (the environment) waited 1 s at {address}: {why}\n"
