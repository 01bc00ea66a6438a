"""What a kind of GPU can do, and the node that it stands in: a YAML file in `gpus/`, or one of the user's own.

Data sheets and measured constants, in bytes, FLOPs and seconds. Knows nothing of models, meshes or steps.
"""

from __future__ import annotations

import difflib
import re
from importlib.resources import as_file, files
from pathlib import Path

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from trainer.config_errors import all_keys, build, fields
from trainer.config_source import Source, dotted, read_file
from trainer.errors import ConfigError

_STRICT = ConfigDict(extra="forbid")
_FOLDER = files(__package__) / "gpus"
KINDS = tuple(sorted(Path(file.name).stem for file in _FOLDER.iterdir() if file.name.endswith(".yaml")))
"""The names that `load` knows."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Link:
    """What NCCL makes of the links between GPUs of a node: a ring that moves n bytes takes n / bandwidth, and latency
    for each GPU that they pass."""

    bandwidth: float = Field(gt=0)
    """Bytes/s of each GPU each way, for large messages."""
    latency: float = Field(ge=0)
    """Seconds."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Efficiency:
    """Parts of what the hardware can do alone that it does in a training step: hot, and with other work around."""

    matmul: float = Field(gt=0, le=1)
    """Of `matmul_flops`, for large matmuls."""
    attention: float = Field(gt=0, le=1)
    """Of what matmuls reach, in an attention kernel that keeps its scores on the chip."""
    memory: float = Field(gt=0, le=1)
    """Of `memory_bandwidth`, in elementwise work."""
    network: float = Field(gt=0, le=1)
    """Of `network_bandwidth`."""
    overlap: float = Field(ge=0, le=1)
    """Of the time of a collective, how much the work beside it can hide."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Gpu:
    """One kind of GPU. Where a field is not the data sheet's, its YAML file says where it is from."""

    name: str
    peak_flops: float = Field(gt=0)
    """FLOP/s in bfloat16 and float16, dense: what MFU and HFU are parts of."""
    matmul_flops: float = Field(gt=0)
    """FLOP/s that large matmuls reach, one after the other."""
    multiprocessors: int = Field(ge=1)
    memory_bytes: float = Field(gt=0)
    memory_bandwidth: float = Field(gt=0)
    """Bytes/s."""
    nvlink_bandwidth: float = Field(gt=0)
    """Bytes/s each way, by the data sheet."""
    nvlink: Link
    """What collectives within a node reach."""
    network_bandwidth: float = Field(gt=0)
    """Bytes/s that each GPU of a node can send to other nodes while all do, by the data sheet."""
    host_bandwidth: float = Field(gt=0)
    """Bytes/s each way between a GPU and its host's memory, by the data sheet."""
    host_memory_bandwidth: float | None = Field(default=None, gt=0)
    """Bytes/s that the host's memory is read and written with, in sum: a GPU's part of its node's."""
    nvme_bandwidth: float | None = Field(default=None, gt=0)
    """Bytes/s that disks are read and written with, as much of each, in sum: a GPU's part of its node's."""
    network_latency: float = Field(ge=0)
    """Seconds for each node that a ring passes."""
    launch_seconds: float = Field(ge=0)
    """What a kernel takes besides its work."""
    reserved_bytes: float = Field(ge=0)
    """Held by the driver, the libraries and NCCL."""
    efficiency: Efficiency
    xla_target: str
    """What XLA needs to compile for it without one: an `xla.gpu.GpuTargetConfigProto` as text."""

    def of_host(self, key: str) -> float:
        """One of the rates that a file may leave out, as only what is offloaded needs them.

        Raises:
            ConfigError: it does.
        """
        if (rate := getattr(self, key)) is None:
            raise ConfigError(
                f"{key} of GPU {self.name}: missing, and the update of what is offloaded cannot be planned without it; "
                "write the bytes/s of your hosts into the GPU's file, for each of their GPUs"
            )
        return float(rate)

    def flops(self, itemsize: int) -> float:
        """FLOP/s of large matmuls in a step. float32 is multiplied as TF32, at half the speed of 16 bits."""
        return self.matmul_flops * self.efficiency.matmul * 2 / max(itemsize, 2)

    @property
    def device_kind(self) -> str:
        """What JAX calls it: the description of `xla_target`; empty without one."""
        described = re.search(r'^device_description_str: "(.+)"$', self.xla_target, re.MULTILINE)
        return described[1] if described else ""

    @property
    def bytes_per_second(self) -> float:
        """Of elementwise work in a step."""
        return self.memory_bandwidth * self.efficiency.memory


def load(name: str) -> Gpu:
    """The GPU of one of `KINDS`, or described by the YAML file at the path `name`.

    Raises:
        ConfigError: there is none, or the file has a wrong or missing key.
    """
    if name.lower() in KINDS:
        with as_file(_FOLDER / f"{name.lower()}.yaml") as path:
            return _read(path)
    if Path(name).suffix in (".yaml", ".yml"):
        return _read(Path(name))
    near = difflib.get_close_matches(name.lower(), KINDS, n=1, cutoff=0.4)
    guess = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"no GPU {name!r}{guess} (GPUs: {', '.join(KINDS)}, or a YAML file that describes yours)")


def _read(path: Path) -> Gpu:
    source = Source(str(path), path.parent)
    source.read(read_file(path))
    needed = (key for key in all_keys(Gpu) if fields(Gpu)[key[0]].is_required())
    if missing := [dotted(key) for key in needed if key not in source.places]:
        near = difflib.get_close_matches(missing[0], map(dotted, source.places), n=1)
        guess = f" (is it what {near[0]} should be?)" if near else ""
        raise ConfigError(f"{path}: {', '.join(missing)}: missing{guess}; begin with a copy of {_FOLDER / 'h100.yaml'}")
    return build(Gpu, source)
