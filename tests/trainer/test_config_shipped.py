"""Every config in `configs/` loads, and says in its first lines how to run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config import Config

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))
MESHES = sorted(CONFIGS.glob("meshes/*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_shipped_config_loads_and_begins_with_its_command(file: Path) -> None:
    config = Config.load(file)
    assert config.run.name == file.stem
    header = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert any(f"meshwright train configs/{file.name}" in line for line in header)


@pytest.mark.parametrize("file", MESHES, ids=lambda file: file.name)
def test_a_shipped_mesh_loads(file: Path) -> None:
    Config.load(CONFIGS / "gpt2-124m.yaml", [f"mesh=meshes/{file.name}", "batch.micro=1"])


def test_the_quickstart_needs_no_accelerator() -> None:
    mesh = Config.load(CONFIGS / "quickstart.yaml").mesh
    assert mesh.num_devices == mesh.virtual_devices == 8
