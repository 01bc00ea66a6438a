"""Whatever launchers have put into the environment, a process finds its place or says what is wrong, and soon."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.fuzz.harness import fuzzed, only_clear_errors
from trainer.errors import ConfigError
from trainer.processes import launchers
from trainer.processes.launchers import find_place
from trainer.processes.place import OURS
from trainer.processes.slurm import expand_hosts

SLURM = [
    *("SLURM_PROCID", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_LOCALID"),
    *("SLURM_NODEID", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_TASKS_PER_NODE"),
]
NAMES = sorted(
    {*OURS, *launchers.JAX, *launchers.JAXJOB, *launchers.TORCH, *launchers.JOBSET, *launchers.OPEN_MPI, *SLURM}
)
NUMBERS = st.integers(0, 9).map(str)
VALUES = (
    NUMBERS
    | st.sampled_from(["", "-1", "1e3", "²", "٣", "9" * 5000, "host", "host:1", "host:²", ":", "[::1]:5", "host:99999"])
    | st.sampled_from(["n[0-3]", "n[01-03,7]", "n[3-1]", "n[", "n[0-99999999999]", "8(x2),4", "8(x99999999999)", "8(x"])
    | st.text("n[]0123456789-,(x)", max_size=20)
    | st.text(max_size=5)
)
SLURM_JOB = st.fixed_dictionaries(dict.fromkeys(SLURM, VALUES))
ENVIRONMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=9) | SLURM_JOB


@fuzzed(ENVIRONMENTS)
def test_any_environment(environment: dict[str, str]) -> None:
    with only_clear_errors():
        place = find_place(environment)
        assert place is None or 0 <= place.process < place.processes


@pytest.mark.parametrize(
    "hosts", ["n[0-99999999999]", "n[0-9999][0-9999][0-9999]", "n" + "[0-1]" * 60, "n[1-" + "9" * 5000 + "]"]
)
def test_hosts_without_end_are_refused(hosts: str) -> None:
    with only_clear_errors(), pytest.raises(ConfigError):
        expand_hosts(hosts)


def test_tasks_without_end_are_refused() -> None:
    job = dict.fromkeys(SLURM, "2") | {"SLURM_STEP_NODELIST": "n[0-1]", "SLURM_TASKS_PER_NODE": "8(x99999999999)"}
    with only_clear_errors(), pytest.raises(ConfigError):
        find_place(job | {"SLURM_PROCID": "0"})
