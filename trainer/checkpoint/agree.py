"""What all processes take from process 0, so that all do the same: all have to ask for it, in turn."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence

import numpy as np
from jax.experimental import multihost_utils

from trainer.processes import membership


def of_first(numbers: Sequence[int]) -> list[int]:
    """The numbers (of 31 bits) that process 0 has. Touches no device, unless somebody else has joined the processes."""
    if membership.current() is not None:
        return json.loads(membership.of_first("numbers", json.dumps(list(numbers))))
    if membership.process_count() == 1:
        return list(numbers)
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(numbers))))
    mine = np.resize(np.array(numbers or [0], np.int32), count)
    return [int(number) for number in multihost_utils.broadcast_one_to_all(mine)]


def found_by_any(names: Collection[str], of: Sequence[str]) -> list[str]:
    """Those that any process has found, of names that all have in this order. Asks the others through the devices."""
    found = np.array([name in names for name in of])
    if membership.process_count() > 1:
        found = multihost_utils.process_allgather(found).any(axis=0)
    return [name for name, is_found in zip(of, found, strict=True) if is_found]


def token() -> str:
    """Letters and digits that no earlier draft of a checkpoint had."""
    return f"{of_first([secrets.randbits(31)])[0]:08x}"
