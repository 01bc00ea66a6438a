"""`meshwright bench offload`: what an offloaded optimizer's step takes on this machine, and settings that suit it."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from trainer.bench import offload
from trainer.bench.offload import BUCKETS, BUFFERS, Copies, Name, Setting, state_bytes
from trainer.tables import make_table, wide_console
from trainer.units import binary

WEIGHT = 2
"""Bytes of a new weight, in bfloat16."""


def show_offload(folder: Path | None) -> None:
    """Prints the tables, and what of a config they speak for.

    Args:
        folder: on a disk that is to be measured too.

    Raises:
        ConfigError: nothing can be kept in `folder`, or what the update needs is not installed.
        OSError: the disk cannot be read or written.
    """
    if folder is not None:
        offload.check_folder(folder)
    device = jax.devices()[0]
    dtype = np.dtype(jnp.float32 if device.platform == "cpu" else jnp.bfloat16)
    names: tuple[Name, ...] = get_args(Name)
    _say("updates in host memory")
    memory, optimizers = offload.memory_rate(), {name: offload.update_rate(name, BUCKETS[0]) for name in names}
    updates, copies = {}, {}
    for bucket in sorted(BUCKETS):
        _say(f"host memory: buckets of {bucket:,}")
        updates[bucket] = offload.update_rate("adamw", bucket)
        copies[bucket] = offload.copy_rates(device, dtype, bucket)
    if folder is None:
        from_disk = {}
        through = {Setting(bucket, BUFFERS[0]): rate for bucket, rate in updates.items()}
    else:
        from_disk = through = offload.disk_update_rates(folder, _say)
    whole = {setting: min(rate, *copies[setting.bucket]) for setting, rate in through.items()}
    best = offload.proposed(whole)

    console = wide_console()
    console.print(f"{os.cpu_count()} threads; {device.device_kind}, jax {jax.__version__}", highlight=False)
    console.print(_optimizers_table(optimizers, memory))
    console.print(_buckets_table(updates, copies, dtype, device.platform == "cpu"))
    if folder is not None:
        _say("disk: alone")
        console.print(_disk_table(folder, from_disk, offload.disk_rates(folder, best)))
    seconds = f"AdamW of a billion parameters then takes {1e9 / whole[best]:.2g} s of a step, whatever its computation."
    console.print(seconds, _yaml(best, folder), sep="\n\n", highlight=False)


def _optimizers_table(rates: Mapping[Name, float], memory: float) -> Table:
    table = make_table(
        "Updates in host memory", ["optimizer"], ["bytes a parameter", "million/s", "GB/s", "of memory's"]
    )
    table.caption, table.caption_justify = (
        "Parameters a second, clipped, with weight decay, new weights in bfloat16. An update reads the gradient and "
        f"its state, and writes state and weight. Memory's: arrays are added in place at {memory / 1e9:.3g} GB/s.",
        "left",
    )
    for name, rate in rates.items():
        moved = rate * (2 * state_bytes(name) + 4 + WEIGHT)
        table.add_row(name, str(state_bytes(name)), _million(rate), f"{moved / 1e9:.3g}", f"{moved / memory:.0%}")
    return table


def _buckets_table(
    updates: Mapping[int, float], copies: Mapping[int, Copies], dtype: np.dtype, in_place: bool
) -> Table:
    table = make_table("By bucket, million parameters/s", ["offload.bucket"], ["adamw", "down", "up", "slowest"])
    where = "the devices are this host's CPU: gradients are read in place, and weights copied within memory"
    table.caption, table.caption_justify = (
        f"Down: gradients, float32. Up: weights, {dtype.name}. A bucket at a time"
        f"{f'; {where}' if in_place else ', between the host and one device'}.",
        "left",
    )
    for bucket, rate in updates.items():
        lanes = rate, *copies[bucket]
        table.add_row(str(bucket), *map(_million, lanes), _million(min(lanes)))
    return table


def _disk_table(folder: Path, rates: Mapping[Setting, float], alone: Mapping[str, float]) -> Table:
    table = make_table(
        f"Through {folder}, read, updated and written",
        ["offload.bucket", "offload.buffers"],
        ["host memory", "million/s"],
    )
    gigabytes = {what: f"{rate / 1e9:.3g}" for what, rate in alone.items()}
    table.caption, table.caption_justify = (
        f"AdamW. The disk reads {gigabytes['read']} GB/s, writes {gigabytes['write']} GB/s, and with both at a time "
        f"{gigabytes['both']} GB/s together.",
        "left",
    )
    for setting, rate in sorted(rates.items()):
        held = setting.bucket * setting.buffers * state_bytes("adamw")
        table.add_row(str(setting.bucket), str(setting.buffers), binary(held), _million(rate))
    return table


def _yaml(best: Setting, folder: Path | None) -> str:
    """To be pasted into a config."""
    if folder is None:
        return f"offload:\n  optimizer: host\n  bucket: {best.bucket}"
    place = f"offload:\n  optimizer: nvme\n  path: {json.dumps(str(folder.absolute()))}"
    return f"{place}\n  bucket: {best.bucket}\n  buffers: {best.buffers}"


def _million(rate: float) -> str:
    return "in place" if math.isinf(rate) else f"{rate / 1e6:,.0f}"


def _say(text: str) -> None:
    """What comes next, for whoever waits."""
    print(text, file=sys.stderr, flush=True)
