"""How much of a GPU's memory JAX takes for arrays: asked for before JAX starts, and judged by wherever something fits.

JAX alone takes three quarters. Imports no JAX, and touches no device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

FRACTION = 0.92
"""Of a GPU's memory. The rest, 1.9 GB of 24 and 6.8 GB of 85, is for what does not take it from JAX: CUDA's context and
loaded kernels, CUDA graphs, and NCCL, which has buffers for each group of devices. Workspaces of cuBLAS and cuDNN are
arrays to XLA, and among what it takes."""
VARIABLE = "XLA_CLIENT_MEM_FRACTION"
THEIRS = (
    VARIABLE,
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
"""Variables of JAX's by which a user says it otherwise. JAX refuses the first two together."""


def ask_for_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Lets JAX take `FRACTION`, unless the user has said something of it. Has no effect once JAX has started."""
    if not any(environment.get(name) for name in THEIRS):
        environment[VARIABLE] = f"{FRACTION}"


def asked_for(environment: Mapping[str, str] = os.environ) -> str:
    """What the environment says of it, as one would write it: `XLA_CLIENT_MEM_FRACTION=0.92`."""
    said = [f"{name}={environment[name]}" for name in THEIRS if environment.get(name)]
    return ", ".join(said) or f"{VARIABLE} is not set, which is 0.75"
