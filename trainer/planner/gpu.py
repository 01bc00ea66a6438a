"""What a kind of GPU can do, and the node that it stands in: a YAML file in `gpus/`, or one of the user's own.

Data sheets and measured constants, in bytes, FLOPs and seconds. A file needs only what every plan is made of; what else
it leaves out has the value that is given here. Knows nothing of models, meshes or steps.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from trainer.config_errors import all_keys, build, fields
from trainer.config_source import Source, dotted, read_file
from trainer.config_yaml import KeyPath
from trainer.errors import ConfigError
from trainer.gpu_memory import FRACTION
from trainer.paths import local

_STRICT = ConfigDict(extra="forbid")
_FOLDER = files(__package__) / "gpus"
KINDS = tuple(sorted(Path(file.name).stem for file in _FOLDER.iterdir() if file.name.endswith(".yaml")))
"""The names that `load` knows."""
ALIASES = {
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "6000 ada": "rtx-6000-ada",
    "rtx 6000 ada generation": "rtx-6000-ada",
    "rtx a6000": "a6000",
    "v100": "v100-32gb",
    "v100-sxm2-32gb": "v100-32gb",
    "a100-80gb": "a100",
    "a100-sxm4-80gb": "a100",
    "h100-sxm": "h100",
    "h100 80gb hbm3": "h100",
}
"""Other names that GPUs go by, and theirs in `KINDS`."""
LINK_REACHES, MATMUL_REACHES = 0.8, 0.8
"""Parts of the data sheet's bandwidth and FLOP/s that an A100 or H100 reaches with nothing else going on, rounded."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Link:
    """What NCCL makes of the links between GPUs of a node: a ring that moves n bytes takes n / bandwidth, and latency
    for each GPU that they pass."""

    bandwidth: float = Field(gt=0)
    """Bytes/s of each GPU each way, for large messages."""
    latency: float = Field(default=29e-6, ge=0)
    """Seconds."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Efficiency:
    """Parts of what the hardware can do alone that it does in a training step: hot, and with other work around."""

    matmul: float = Field(default=0.79, gt=0, le=1)
    """Of `matmul_flops`, for large matmuls."""
    attention: float = Field(default=0.6, gt=0, le=1)
    """Of what matmuls reach, in an attention kernel that keeps its scores on the chip."""
    memory: float = Field(default=0.79, gt=0, le=1)
    """Of `memory_bandwidth`, in elementwise work."""
    network: float = Field(default=0.85, gt=0, le=1)
    """Of `network_bandwidth`."""
    overlap: float = Field(default=0.8, ge=0, le=1)
    """Of the time of a collective, how much the work beside it can hide."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Gpu:
    """One kind of GPU. Where a field is not the data sheet's, its YAML file says where it is from."""

    name: str
    """What it is called where it is told of."""
    peak_flops: float = Field(gt=0)
    """FLOP/s in bfloat16 and float16 that are summed in float32, dense: what MFU and HFU are parts of."""
    memory_bytes: float = Field(gt=0)
    """That CUDA finds: somewhat less than is sold."""
    memory_bandwidth: float = Field(gt=0)
    """Bytes/s by the data sheet."""
    nvlink_bandwidth: float = Field(gt=0)
    """Bytes/s each way between GPUs of a node, by the data sheet: NVLink's, or PCIe's where there is none."""
    network_bandwidth: float = Field(gt=0)
    """Bytes/s that each GPU of a node can send to other nodes while all do, by the data sheet."""

    matmul_flops: float | None = Field(default=None, gt=0)
    """FLOP/s that large matmuls reach, one after the other; 0.8 of the peak unless given."""
    float32_flops: float | None = Field(default=None, gt=0)
    """FLOP/s in float32, dense; half of `peak_flops` unless given, as it is multiplied as TF32."""
    bfloat16: bool = True
    """Whether it multiplies bfloat16."""
    multiprocessors: int = Field(default=128, ge=1)
    """Of which a small matmul leaves some idle."""
    nvlink: Link | None = None
    """What collectives within a node reach; 0.8 of `nvlink_bandwidth` unless given."""
    host_bandwidth: float | None = Field(default=None, gt=0)
    """Bytes/s each way between a GPU and its host's memory, by the data sheet. Needed for what is offloaded."""
    host_memory_bandwidth: float | None = Field(default=None, gt=0)
    """Bytes/s that the host's memory is read and written with, in sum: a GPU's part of its node's. Needed for what is
    offloaded."""
    nvme_bandwidth: float | None = Field(default=None, gt=0)
    """Bytes/s that disks are read and written with, as much of each, in sum: a GPU's part of its node's. Needed for
    what is offloaded to NVMe."""
    network_latency: float = Field(default=10e-6, ge=0)
    """Seconds for each node that a ring passes."""
    launch_seconds: float = Field(default=5e-6, ge=0)
    """What a kernel takes besides its work."""
    memory_fraction: float = Field(default=FRACTION, gt=0, le=1)
    """Of `memory_bytes`, what JAX takes for arrays: its XLA_CLIENT_MEM_FRACTION, which a run sets to this default."""
    reserved_bytes: float = Field(default=2e9, ge=0)
    """Held by the driver, the libraries and NCCL, outside of what JAX takes."""
    efficiency: Efficiency = Efficiency()
    """Parts of all this that a training step reaches."""
    device_kind: str = ""
    """What JAX calls it; the description of `xla_target` unless given."""
    xla_target: str = ""
    """What XLA needs to compile for it without one: an `xla.gpu.GpuTargetConfigProto` as text. Needed for --compile."""

    def __post_init__(self) -> None:
        described = re.search(r'^device_description_str: "(.+)"$', self.xla_target, re.MULTILINE)
        if described and not self.device_kind:
            object.__setattr__(self, "device_kind", described[1])

    @property
    def pool_bytes(self) -> float:
        """That JAX has for arrays: its part of the memory, or what is not reserved where that is less."""
        return min(self.memory_fraction * self.memory_bytes, self.memory_bytes - self.reserved_bytes)

    @property
    def limit_bytes(self) -> float:
        """What a plan, `reserved_bytes` among it, may come to at most: the one number that says whether it fits."""
        return self.pool_bytes + self.reserved_bytes

    def with_pool(self, size: float) -> Gpu:
        """The same, of which JAX takes so many bytes."""
        return dataclasses.replace(self, memory_fraction=min(size / self.memory_bytes, 1))

    @property
    def link(self) -> Link:
        """What collectives within a node reach."""
        return self.nvlink or Link(bandwidth=LINK_REACHES * self.nvlink_bandwidth)

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

    def require(self, compute: str) -> None:
        """Whether it multiplies what `precision.compute` asks for.

        Raises:
            ConfigError: it does not.
        """
        if compute == "bfloat16" and not self.bfloat16:
            raise ConfigError(
                f"precision.compute=bfloat16: GPU {self.name} does not multiply bfloat16; use precision.compute=float16"
            )

    def require_target(self) -> None:
        """Whether XLA can be told what to compile for.

        Raises:
            ConfigError: it cannot.
        """
        if not self.xla_target:
            able = ", ".join(kind for kind in KINDS if load(kind).xla_target)
            raise ConfigError(
                f"GPU {self.name} cannot be compiled for where there is none: its file has no xla_target, what XLA "
                f"needs to know of it. Plan without compiling, or compile for one of {able}"
            )

    def peak(self, itemsize: int) -> float:
        """FLOP/s by the data sheet, for elements of so many bytes."""
        return self.peak_flops if itemsize <= 2 else self.float32_flops or self.peak_flops / 2

    def flops(self, itemsize: int) -> float:
        """FLOP/s of large matmuls in a step."""
        alone = self.matmul_flops or MATMUL_REACHES * self.peak_flops
        return alone * self.efficiency.matmul * self.peak(itemsize) / self.peak_flops

    @property
    def bytes_per_second(self) -> float:
        """Of elementwise work in a step."""
        return self.memory_bandwidth * self.efficiency.memory


def load(name: str) -> Gpu:
    """The GPU of one of `KINDS`, or described by the YAML file at the path `name`.

    A name is known in any spelling that has all of its letters and digits: `RTX 4090`, `NVIDIA L4`, `4090`.

    Raises:
        ConfigError: there is none, or the file has a wrong or missing key.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return _read(Path(local(name)))
    plain = _plain(name)
    known = {_plain(kind): kind for kind in KINDS} | {_plain(alias): kind for alias, kind in ALIASES.items()}
    if plain in known:
        with as_file(_FOLDER / f"{known[plain]}.yaml") as path:
            return _read(path)
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    guess = f"; did you mean {known[near[0]]}?" if near else ""
    raise ConfigError(
        f"no GPU {name!r}{guess} (GPUs: {', '.join(KINDS)}, or a YAML file that describes yours: its keys are in "
        "docs/planning.md)"
    )


def described(device_kind: str) -> Gpu | None:
    """Of `KINDS`, the one that JAX calls so."""
    return next((gpu for gpu in map(load, KINDS) if gpu.device_kind == device_kind), None)


def _plain(name: str) -> str:
    """Letters and digits, without the maker's words."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


def _read(path: Path) -> Gpu:
    source = Source(str(path), path.parent)
    source.read(read_file(path))
    needed = [key for key in all_keys(Gpu) if is_needed(key) and (len(key) == 1 or source.wrote(key[:1]))]
    if missing := [dotted(key) for key in needed if key not in source.places]:
        near = difflib.get_close_matches(missing[0], map(dotted, source.places), n=1)
        guess = f" (is it what {near[0]} should be?)" if near else ""
        raise ConfigError(
            f"{path}: {', '.join(missing)}: missing{guess}; a GPU's file needs "
            f"{', '.join(dotted(key) for key in needed if len(key) == 1)}"
        )
    return build(Gpu, source)


def is_needed(key: KeyPath) -> bool:
    """Whether a file must have a key, if it has the section."""
    schema: Any = Gpu
    for name in key[:-1]:
        schema = fields(schema)[name].annotation
    return fields(schema)[key[-1]].is_required()
