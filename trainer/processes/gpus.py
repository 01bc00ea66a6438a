"""Which of a host's GPUs are those of one of its processes."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError
from trainer.processes.place import Environment, Place, number

LOCAL_DEVICES = "MESHWRIGHT_LOCAL_DEVICES"
"""What goes before all that is found here: numbers among the visible GPUs, such as 0,1."""


def count_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """NVIDIA GPUs that this machine has; starts nothing on them."""
    return sum(1 for _ in driver.iterdir()) if driver.is_dir() else 0


def visible_gpus(environment: Environment, there: int) -> int:
    """Of `there` GPUs, as many as CUDA shows to this process."""
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    return there if shown is None else len([device for device in shown.split(",") if device.strip()])


def local_devices(place: Place, environment: Environment, there: int) -> list[int] | None:
    """This process' GPUs, as numbers among the visible ones; None for all of them.

    Processes that see the same GPUs share them out evenly, in the order of their place on the host. Where each is shown
    GPUs of its own already (by SLURM with --gpus-per-task, or one each by whoever started it), it takes them all.

    Raises:
        ConfigError: they do not share out evenly.
    """
    if LOCAL_DEVICES in environment:
        return _given(environment)
    visible, index = visible_gpus(environment, there), place.index_on_host
    if visible < 2 or index is None or place.on_host == 1:
        return None
    of_step = len([device for device in environment.get("SLURM_STEP_GPUS", "").split(",") if device])
    if visible < of_step:
        return None
    # Who tells a rank on this host and no more means one GPU each, as torch's scripts do.
    on_host = place.on_host or visible
    if visible % on_host or index >= on_host:
        raise ConfigError(
            f"{place.told_by}: process {index + 1} of {place.on_host or 'several'} on this host sees {visible} GPUs, "
            f"which do not share out evenly; start one process a GPU, or one for all, or set {LOCAL_DEVICES}"
        )
    share = visible // on_host
    return list(range(index * share, (index + 1) * share))


def _given(environment: Environment) -> list[int]:
    numbers = environment[LOCAL_DEVICES].split(",")
    return [number({LOCAL_DEVICES: one.strip()}, LOCAL_DEVICES) for one in numbers]
