"""Bits flipped in a checkpoint's files, one at a time: is each found, and its array named?

    python -m benchmarks.checkpoint_flips [--flips 2000]

A flip is anywhere in an array's bytes, or in one of the JSON files that describe them; then the checkpoint is loaded.
Counted as found: it is refused, by the name of the array, or of the file. In JSON, a flip may also leave all as it is,
such as a letter of a number's exponent: then the arrays must be, bit for bit. Exits with 1 where anything else loads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import jax
import numpy as np

from benchmarks.common import show
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.header import HEADER
from trainer.checkpoint.sealed import read_sealed
from trainer.errors import ConfigError

SIZES = {"parameters.weight": 5000, "optimizer.mu.weight": 3000, "step": 1}
INDEX, DATA = "0.json", "0.bin"


def outcome(checkpoints: Checkpoints, expected: dict[str, np.ndarray], name: str) -> str:
    """What comes of loading it: `found`, `unchanged`, or `LOADED`."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = {key: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for key, x in expected.items()}
    try:
        arrays = checkpoints.restore(1, abstract)
    except ConfigError as error:
        return "found" if "is damaged" in str(error) and name in str(error) else "found, not named"
    return "unchanged" if all(np.array_equal(arrays[key], x) for key, x in expected.items()) else "LOADED"


def main(flips: int, folder: Path) -> int:
    """Prints the table; whether anything was loaded that is not what was saved."""
    rng = np.random.default_rng(0)
    expected = {name: rng.normal(size=size).astype(np.float32) for name, size in SIZES.items()}
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(1, jax.device_put(expected), {"tokens": 5})
    checkpoints.close()
    pieces = {name: saved["pieces"][0]["offset"] for name, saved in read_sealed(folder / "1" / INDEX).items()}
    places = {f"{DATA}: {name}": (DATA, name, start, 4 * SIZES[name]) for name, start in pieces.items()}
    places |= {file: (file, file, 0, (folder / "1" / file).stat().st_size) for file in (INDEX, HEADER)}
    rows, is_well = [], True
    for what, (file, name, start, size) in places.items():
        path = folder / "1" / file
        before, counts = path.read_bytes(), Counter[str]()
        for bit in rng.choice(8 * size, min(flips // len(places), 8 * size), replace=False):
            content = bytearray(before)
            content[start + bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            counts[outcome(checkpoints, expected, name)] += 1
        path.write_bytes(before)
        is_well = is_well and not counts["LOADED"] and not counts["found, not named"]
        is_well = is_well and (file != DATA or not counts["unchanged"])
        rows.append([what, *(str(count) for count in (counts.total(), counts["found"], counts["unchanged"]))])
    show("One bit flipped, then loaded", ["in", "flips", "found and named", "nothing changed"], rows)
    return int(not is_well)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(options.flips, Path(place, "checkpoints")))
