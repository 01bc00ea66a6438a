"""Which process this is, by the environment of each launcher: as its documentation says that it is set."""

from __future__ import annotations

import pytest

from trainer.errors import ConfigError
from trainer.processes.launchers import find_place
from trainer.processes.place import Environment, Place
from trainer.processes.slurm import expand_hosts

# What srun sets on the second of two hosts, in the sixth of eight tasks.
SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "gpu[01-03,7],login2",
    "SLURM_STEP_NODELIST": "gpu[02-03]",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
OPEN_MPI_5 = {name: value for name, value in OPEN_MPI_4.items() if name != "OMPI_MCA_orte_hnp_uri"}
TORCH = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "16", "RANK": "9", "LOCAL_RANK": "1"}
JOBSET = {"JOBSET_NAME": "llama", "REPLICATED_JOB_NAME": "workers", "JOB_COMPLETION_INDEX": "2"}
OURS = {"MESHWRIGHT_COORDINATOR": "[::1]:5000", "MESHWRIGHT_PROCESSES": "2", "MESHWRIGHT_PROCESS": "1"}

FOUND: dict[str, tuple[Environment, Place | None]] = {
    "nothing": ({"HOME": "/root", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, None),
    "ours": (OURS, Place("the environment", "[::1]:5000", 2, 1)),
    "ours before all others": (SLURM | TORCH | OURS, Place("the environment", "[::1]:5000", 2, 1)),
    "slurm": (SLURM, Place("SLURM", "gpu02:63111", 8, 5, on_host=4, index_on_host=1)),
    "slurm, one task": (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
    "slurm, with an address of the script's": (
        SLURM | {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234", "WORLD_SIZE": "8"},
        Place("SLURM", "10.0.0.9:1234", 8, 5, on_host=4, index_on_host=1),
    ),
    "an salloc shell": ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"}, None),
    "torchrun": (TORCH | {"LOCAL_WORLD_SIZE": "8"}, Place("RANK", "10.0.0.1:29500", 16, 9, 8, 1)),
    "torch's variables": (TORCH, Place("RANK", "10.0.0.1:29500", 16, 9, None, 1)),
    "torch's variables, of srun's tasks": (
        SLURM | TORCH | {"WORLD_SIZE": "8", "RANK": "5"},
        Place("RANK", "10.0.0.1:29500", 8, 5, None, 1),
    ),
    "torchrun within srun": (SLURM | TORCH | {"LOCAL_WORLD_SIZE": "8"}, Place("RANK", "10.0.0.1:29500", 16, 9, 8, 1)),
    "open mpi 4": (OPEN_MPI_4, Place("Open MPI", "10.96.0.1:29400", 4, 3, 2, 1)),
    "open mpi 4, ipv6": (
        OPEN_MPI_4 | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp6://[fe80::1,2620::2]:43370"},
        Place("Open MPI", "[fe80::1]:29400", 4, 3, 2, 1),
    ),
    "open mpi 5": (OPEN_MPI_5 | {"MASTER_ADDR": "n1"}, Place("Open MPI", "n1:29400", 4, 3, 2, 1)),
    "open mpi on one host": (
        OPEN_MPI_5 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        Place("Open MPI", "127.0.0.1:29400", 4, 3, 4, 1),
    ),
    "mpirun within sbatch": (SLURM | OPEN_MPI_4, Place("Open MPI", "10.96.0.1:29400", 4, 3, 2, 1)),
    "jobset": (
        JOBSET | {"MESHWRIGHT_PROCESSES": "4", "JOB_INDEX": "0"},
        Place("the JobSet", "llama-workers-0-0.llama:29400", 4, 2),
    ),
    "jobset in torch's way": (
        JOBSET | {"MASTER_ADDR": "llama-workers-0-0.llama", "MASTER_PORT": "3389", "WORLD_SIZE": "4"},
        Place("RANK", "llama-workers-0-0.llama:3389", 4, 2),
    ),
    "a job of pods that know nothing of each other": ({"JOB_COMPLETION_INDEX": "3"}, None),
    "kubeflow trainer": (
        JOBSET
        | {
            "JAX_COORDINATOR_ADDRESS": "job-node-0-0.job:29500",
            "JAX_COORDINATOR_PORT": "29500",
            "JAX_NUM_PROCESSES": "3",
            "JAX_PROCESS_ID": "2",
        },
        Place("Kubeflow Trainer", "job-node-0-0.job:29500", 3, 2),
    ),
    "kubeflow training operator": (
        {"COORDINATOR_ADDRESS": "j-worker-0", "COORDINATOR_PORT": "6666", "NUM_PROCESSES": "3", "PROCESS_ID": "0"},
        Place("Kubeflow's JAXJob", "j-worker-0:6666", 3, 0),
    ),
    "a pytorchjob": (
        {"MASTER_ADDR": "j-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "1"},
        Place("RANK", "j-master-0:23456", 3, 1),
    ),
}


@pytest.mark.parametrize(("environment", "place"), FOUND.values(), ids=FOUND.keys())
def test_each_launcher_is_understood(environment: Environment, place: Place | None) -> None:
    assert find_place(environment) == place


REFUSED: dict[str, tuple[Environment, str]] = {
    "ours by half": (
        {"MESHWRIGHT_PROCESSES": "2", "MESHWRIGHT_PROCESS": "0"},
        "the environment has set MESHWRIGHT_PROCESSES, MESHWRIGHT_PROCESS, but not MESHWRIGHT_COORDINATOR",
    ),
    "no number": (OURS | {"MESHWRIGHT_PROCESS": "one"}, "MESHWRIGHT_PROCESS='one' is not a number"),
    "no port": (OURS | {"MESHWRIGHT_COORDINATOR": "gpu01"}, "the coordinator is 'gpu01', and must be HOST:PORT"),
    "from one": (OURS | {"MESHWRIGHT_PROCESS": "2"}, "this is process 2 of 2; they count from 0 to 1"),
    "torch's by half": ({"WORLD_SIZE": "4", "RANK": "0"}, "but not MASTER_ADDR, MASTER_PORT"),
    "torch's without a rank": ({name: value for name, value in TORCH.items() if name != "RANK"}, "but not RANK"),
    "kubeflow's by half": ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_PROCESS_ID": "0"}, "but not JAX_NUM_PROCESSES"),
    "jobset without a count": (JOBSET, "but not MESHWRIGHT_PROCESSES"),
    "jobset's second replica": (
        JOBSET | {"MESHWRIGHT_PROCESSES": "4", "JOB_INDEX": "1"},
        "only one replica can train; use replicas: 1",
    ),
    "open mpi 5 on several hosts": (OPEN_MPI_5, "mpirun -x MASTER_ADDR=HOST"),
    "an sbatch script without srun": (
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n1"},
        "has 8 tasks, and this process is none of them but the script that starts them; put srun before the command",
    ),
    "a broken list of hosts": (SLURM | {"SLURM_STEP_NODELIST": "gpu[01-"}, "is not a list of hosts as SLURM writes it"),
    "two that disagree": (
        SLURM | TORCH,
        "RANK says that this is process 9 of 16, and SLURM that it is process 5 of 8; unset the variables of one",
    ),
}


@pytest.mark.parametrize(("environment", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_set_by_half_or_contradicts_itself_is_refused(environment: Environment, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_place(environment)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a1,b2", ["a1", "b2"]),
        ("gpu[01-03,7],login2", ["gpu01", "gpu02", "gpu03", "gpu7", "login2"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        (
            "rack[1-2]-gpu[08-09].local",
            ["rack1-gpu08.local", "rack1-gpu09.local", "rack2-gpu08.local", "rack2-gpu09.local"],
        ),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "gpu[01", "gpu[a-b]", "gpu[3-]", "a,,b"])
def test_broken_lists_of_hosts(text: str) -> None:
    with pytest.raises(ConfigError):
        expand_hosts(text)
