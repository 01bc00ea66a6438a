"""A script for sbatch that trains a config: one task a GPU, signalled in time to save before the limit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from trainer.processes.own_command import own_command

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={gpus}
#SBATCH --gpus-per-node={gpus}
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
# So many seconds before the time limit every task is told to stop: it saves, and `sbatch` of the same script goes on.
#SBATCH --signal=TERM@{seconds}
# To be added as the cluster wants it: --partition, --account, --time, --cpus-per-task.
set -euo pipefail

srun --kill-on-bad-exit=1 {command}
"""


def slurm_script(config: Path, overrides: Sequence[str], *, name: str, nodes: int, gpus: int, seconds: int) -> str:
    """The script's text; this Python is there on all nodes.

    Args:
        name: of the job.
        gpus: of each node.
        seconds: how long a step, and saving, take at most.
    """
    command = shlex.join(own_command("trainer", "train", str(config), *overrides))
    return _SCRIPT.format(name=name, nodes=nodes, gpus=gpus, seconds=seconds, command=command)
