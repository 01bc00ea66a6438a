"""What SLURM says of a task that srun has started. Knows its environment variables and its lists of hosts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from trainer.errors import ConfigError
from trainer.processes.place import OUR_WAY, Environment, Place, number, require

# Of steps that are not srun's: the batch script itself, an interactive shell, and what ssh brings into the job.
_NOT_SRUN = {str(2**32 - offset) for offset in (4, 5, 6)}
_PORTS = range(61440, 65536)
_MOST = 1_000_000
"""Hosts that a list may name, and tasks that counts may: it takes a slip to write more."""


def slurm(environment: Environment) -> Place | None:
    """The place of a task of a job step; None outside of SLURM, or for its only task.

    Raises:
        ConfigError: the job has several tasks, and this process is none of them; or a variable is missing or broken.
    """
    if "SLURM_PROCID" not in environment or "SLURM_JOB_ID" not in environment:
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    if tasks not in environment or number(environment, tasks) == 1:
        return None
    nodes = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environment else "SLURM_JOB_NODELIST"
    if environment.get("SLURM_STEP_ID", min(_NOT_SRUN)) in _NOT_SRUN:
        raise ConfigError(
            f"the SLURM job has {environment[tasks]} tasks, and this process is none of them but the script that "
            "starts them; put srun before the command"
        )
    require(environment, (nodes,), "SLURM")
    job, step = number(environment, "SLURM_JOB_ID"), number(environment, "SLURM_STEP_ID")
    host = environment.get("MASTER_ADDR") or expand_hosts(environment[nodes])[0]
    port = environment.get("MASTER_PORT") or str(_PORTS[(job + step) % len(_PORTS)])
    return Place(
        told_by="SLURM",
        coordinator=f"{host}:{port}",
        processes=number(environment, tasks),
        process=number(environment, "SLURM_PROCID"),
        on_host=_tasks_here(environment),
        index_on_host=number(environment, "SLURM_LOCALID") if "SLURM_LOCALID" in environment else None,
    )


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list as SLURM writes it: `gpu[01-03,7],login2` is gpu01, gpu02, gpu03, gpu7, login2.

    Raises:
        ConfigError: it is no such list.
    """
    names = re.findall(r"(?:[^,\[\]]|\[[\d,-]+\])+", text)
    if not names or ",".join(names) != text:
        raise ConfigError(f"{text!r} is not a list of hosts as SLURM writes it; {OUR_WAY}")
    return [host for name in names for host in _expand(name)]


def _expand(name: str) -> Iterator[str]:
    parts = re.split(r"\[([\d,-]+)\]", name)  # every second one was in brackets
    choices = [list(_numbers(part)) if odd % 2 else [part] for odd, part in enumerate(parts)]
    if math.prod(map(len, choices)) > _MOST:
        raise ConfigError(f"{name:.40} names more hosts than {_MOST:,}; {OUR_WAY}")
    return ("".join(choice) for choice in itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    """`01-03,7` is 01, 02, 03, 7: as wide as the first is written."""
    for item in ranges.split(","):
        if not (found := re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", item)):
            raise ConfigError(f"{item[:40]!r} in a list of hosts is neither a number nor a range; {OUR_WAY}")
        low, high = found.group(1), found.group(2) or found.group(1)
        if int(high) - int(low) >= _MOST:
            raise ConfigError(f"{item} names more hosts than {_MOST:,}; {OUR_WAY}")
        yield from (f"{value:0{len(low)}d}" for value in range(int(low), int(high) + 1))


def _tasks_here(environment: Environment) -> int | None:
    """Of the counts by node, such as `8(x2),4`, the one of this node; None where SLURM does not tell."""
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    if not counts or "SLURM_NODEID" not in environment:
        return None
    by_node: list[int] = []
    for item in counts.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", item)
        if not found or len(by_node) > _MOST:
            raise ConfigError(f"SLURM's tasks per node are {counts[:40]!r}, which is no list of counts; {OUR_WAY}")
        by_node += [int(found.group(1))] * int(found.group(2) or 1)
    node = number(environment, "SLURM_NODEID")
    return by_node[node] if node < len(by_node) else None
