"""Joins the processes by JAX' coordination service, and starts the watch over them.

What `jax.distributed.initialize` does, step by step: it would run the service inside of process 0, listen on every
address of the host, and ask launchers itself, one GPU each.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
from jax._src import distributed, xla_bridge
from jaxlib import _jax

from trainer.errors import ConfigError
from trainer.processes.coordinator import Coordinator
from trainer.processes.membership import LOST, Membership
from trainer.processes.place import COORDINATOR, Place
from trainer.processes.quiet import keep_standard_output
from trainer.processes.store import CoordinatorStore
from trainer.processes.timing import GOODBYE, JOIN, SERVICE_HEARTBEAT, SLACK
from trainer.processes.watch import Watch
from trainer.streams import say_at_the_end

BIND = "JAX_COORDINATOR_BIND_ADDRESS"
"""HOST:PORT where process 0 listens, if it is not where the others find it."""


def join(place: Place, gpus: Sequence[int] | None, environment: Mapping[str, str]) -> Membership:
    """See `trainer.processes.membership.join_others`. `gpus` are this process' own among the visible ones."""
    if xla_bridge.backends_are_initialized():
        raise ConfigError(
            f"{place.told_by} says that this is process {place.process} of {place.processes}, but JAX has found its "
            "devices already; call trainer.processes.membership.join_others() before anything else uses JAX"
        )
    coordinator = None
    if place.process == 0:
        address = environment.get(BIND, place.coordinator)
        require_reachable(place, address)
        coordinator = Coordinator(address, place.processes)
    if gpus is not None:
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, gpus)))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if "NCCL_DEBUG" not in environment:  # whose output is wanted
        keep_standard_output()
    client = _connect(place)
    store = CoordinatorStore(client)
    names = [f"process {process} on {host}" for process, host in enumerate(_hosts(store, place))]
    watch = Watch(store, place.process, names, lambda sentence: _end(f"{sentence}; {names[place.process]} ends too"))
    watch.start()
    return Membership(place, names, store, watch, client, coordinator)


def _hosts(store: CoordinatorStore, place: Place) -> list[str]:
    store.put(f"hosts/{place.process}", socket.gethostname())
    return [store.wait_for(f"hosts/{process}") for process in range(place.processes)]


def _connect(place: Place) -> Any:
    client = _jax.get_distributed_runtime_client(
        place.coordinator,
        place.process,
        init_timeout=int(JOIN + SLACK),
        shutdown_timeout=GOODBYE,
        use_compression=True,
        heartbeat_timeout=SERVICE_HEARTBEAT,
    )
    patience = threading.Timer(JOIN, _give_up, [place])
    patience.daemon = True
    patience.start()
    client.connect()
    patience.cancel()
    state = distributed.global_state
    state.process_id, state.num_processes, state.coordinator_address = place.process, place.processes, place.coordinator
    state.client = client
    return client


def _give_up(place: Place) -> NoReturn:
    host, _, port = place.coordinator.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        why = "process 0 is there, but not all of the others"
    except OSError as error:
        why = f"nobody answers there ({error.strerror or error})"
    me = f"process {place.process} of {place.processes} ({place.told_by})"
    _end(f"{me} waited {JOIN:.0f} s at {place.coordinator}: {why}")


def require_reachable(place: Place, address: str) -> None:
    """Whether others can reach what a host calls itself: many a host's own name is 127.0.1.1 to it, and to no other.

    Raises:
        ConfigError: they cannot.
        OSError: nobody knows the name.
    """
    host = address.rpartition(":")[0].strip("[]")
    is_local = host == "localhost" or host.startswith("127.") or host == "::1"
    if is_local or place.on_host == place.processes:
        return
    try:
        resolved = socket.getaddrinfo(host, None)[0][4][0]
    except OSError as error:
        raise OSError(f"process 0 cannot resolve {host}, where it is to answer the others: {error}") from error
    if str(resolved).startswith("127.") or resolved == "::1":
        raise ConfigError(
            f"process 0 is to answer at {address}, but {host} is {resolved} here, which no other host reaches; set "
            f"{COORDINATOR} or MASTER_ADDR to the host's own address"
        )


def _end(sentence: str) -> NoReturn:
    say_at_the_end(f"error: {sentence}")
    os._exit(LOST)  # threads of XLA would wait for ever for the one that is lost
