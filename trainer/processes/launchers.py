"""What launchers other than SLURM say of a process, and who is believed when several speak."""

from __future__ import annotations

import re

from trainer.errors import ConfigError
from trainer.processes.place import (
    COORDINATOR,
    INDEX_ON_HOST,
    ON_HOST,
    OUR_WAY,
    OURS,
    PORT,
    PROCESS,
    PROCESSES,
    Environment,
    Place,
    Source,
    number,
    require,
)
from trainer.processes.slurm import slurm

JAX = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
"""Kubeflow Trainer sets them."""
JAXJOB = ("COORDINATOR_ADDRESS", "COORDINATOR_PORT", "NUM_PROCESSES", "PROCESS_ID")
"""Kubeflow's older training operator sets them."""
TORCH = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
"""torchrun sets them, a PyTorchJob, and many a script."""
JOBSET = ("JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_COMPLETION_INDEX", PROCESSES)
"""Kubernetes sets the index; names come from the pod's labels, and how many there are from the manifest."""
OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")


def find_place(environment: Environment) -> Place | None:
    """Where this process stands among those that train together; None where it is alone.

    Raises:
        ConfigError: the environment is set by half, or launchers contradict each other.
    """
    is_ours = COORDINATOR in environment or PROCESS in environment
    if is_ours or (PROCESSES in environment and JOBSET[0] not in environment):
        place: Place | None = _ours(environment)
    else:
        found = [place for source in _INNERMOST_FIRST if (place := source(environment))]
        _require_agreement(environment, found)
        place = found[0] if found else None
    return None if place is None or place.processes == 1 else place


def _ours(environment: Environment) -> Place:
    require(environment, OURS, "the environment")
    processes, process = number(environment, PROCESSES), number(environment, PROCESS)
    on_host, index = _numbers(environment, ON_HOST, INDEX_ON_HOST)
    return Place("the environment", environment[COORDINATOR], processes, process, on_host, index)


def _jax(environment: Environment) -> Place | None:
    if JAX[0] not in environment:
        return None
    require(environment, JAX, "Kubeflow Trainer")
    return Place("Kubeflow Trainer", environment[JAX[0]], number(environment, JAX[1]), number(environment, JAX[2]))


def _jaxjob(environment: Environment) -> Place | None:
    if JAXJOB[0] not in environment:
        return None
    require(environment, JAXJOB, "Kubeflow's JAXJob")
    host, port, processes, process = JAXJOB
    coordinator = f"{environment[host]}:{environment[port]}"
    return Place("Kubeflow's JAXJob", coordinator, number(environment, processes), number(environment, process))


def _torch(environment: Environment) -> Place | None:
    """MASTER_ADDR and MASTER_PORT alone say nothing: scripts export them for whoever starts the processes."""
    if "RANK" not in environment and "WORLD_SIZE" in environment and "JOB_COMPLETION_INDEX" in environment:
        environment = {**environment, "RANK": environment["JOB_COMPLETION_INDEX"]}
    is_half = "WORLD_SIZE" in environment and "SLURM_PROCID" not in environment  # else the rank is SLURM's
    if "RANK" not in environment and not is_half:
        return None
    require(environment, TORCH, "who set MASTER_ADDR or RANK")
    host, port, processes, process = TORCH
    on_host, index = _numbers(environment, "LOCAL_WORLD_SIZE", "LOCAL_RANK")
    coordinator = f"{environment[host]}:{environment[port]}"
    return Place("RANK", coordinator, number(environment, processes), number(environment, process), on_host, index)


def _jobset(environment: Environment) -> Place | None:
    """The pods of a JobSet's replicated job, whose first pod has a name that all of them can resolve."""
    if JOBSET[0] not in environment or "WORLD_SIZE" in environment or JAX[0] in environment:
        return None
    require(environment, JOBSET, "the JobSet")
    if environment.get("JOB_INDEX", "0") != "0":
        raise ConfigError(
            f"JOB_INDEX={environment['JOB_INDEX']}: of a JobSet's replicated job only one replica can train; use "
            "replicas: 1, and as many completions as there are pods"
        )
    name, job = environment["JOBSET_NAME"], environment["REPLICATED_JOB_NAME"]
    processes, process = number(environment, PROCESSES), number(environment, "JOB_COMPLETION_INDEX")
    return Place("the JobSet", f"{name}-{job}-0-0.{name}:{PORT}", processes, process)


def _open_mpi(environment: Environment) -> Place | None:
    if OPEN_MPI[0] not in environment:
        return None
    require(environment, OPEN_MPI, "Open MPI")
    processes, process, index, on_host = (number(environment, name) for name in OPEN_MPI)
    host = environment.get("MASTER_ADDR") or ("127.0.0.1" if on_host == processes else _mpirun_host(environment))
    coordinator = f"{host}:{environment.get('MASTER_PORT', PORT)}"
    return Place("Open MPI", coordinator, processes, process, on_host, index)


def _mpirun_host(environment: Environment) -> str:
    """Where mpirun itself runs, and by its habit process 0; Open MPI 5 does not tell."""
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    if not (found := re.search(r"tcp://([^,:]+)|tcp6://(\[[^],]+)", uri)):
        raise ConfigError(
            "Open MPI does not say on which host process 0 runs; pass it on with mpirun -x MASTER_ADDR=HOST, " + OUR_WAY
        )
    return found.group(1) or f"{found.group(2)}]"


def _numbers(environment: Environment, *names: str) -> list[int | None]:
    """Those that are set."""
    return [number(environment, name) if name in environment else None for name in names]


_INNERMOST_FIRST: tuple[Source, ...] = (_jax, _jaxjob, _torch, _jobset, _open_mpi, slurm)


def _require_agreement(environment: Environment, found: list[Place]) -> None:
    """Those who say it all must say the same. MPI and torchrun start processes of their own within SLURM's tasks."""
    if not found:
        return
    first, *others = found
    nests = first.told_by == "Open MPI" or "LOCAL_WORLD_SIZE" in environment
    for other in others:
        if not nests and (first.processes, first.process) != (other.processes, other.process):
            raise ConfigError(
                f"{first.told_by} says that this is process {first.process} of {first.processes}, and {other.told_by} "
                f"that it is process {other.process} of {other.processes}; unset the variables of one, {OUR_WAY}"
            )
