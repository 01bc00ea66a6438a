"""Checkpoints of others are called by their names, and neither read nor touched."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.trainer import small
from trainer import Config, Trainer
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.foreign import whose
from trainer.errors import ConfigError

FILES = {
    "DeepSpeed": [
        ["latest", "global_step10/mp_rank_00_model_states.pt", "zero_to_fp32.py"],
        ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"],
        ["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"],
    ],
    "Megatron-LM": [
        ["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"],
        ["mp_rank_00_000/model_optim_rng.pt"],
        ["__0_0.distcp", ".metadata", "common.pt"],
    ],
    "Hugging Face": [
        ["config.json", "model.safetensors"],
        ["model-00001-of-00002.safetensors", "model.safetensors.index.json"],
        ["pytorch_model.bin"],
    ],
    "orbax": [
        ["_CHECKPOINT_METADATA", "items/manifest.ocdbt", "items/_METADATA"],
        ["100/_CHECKPOINT_METADATA", "100/default/manifest.ocdbt"],
        ["_CHECKPOINT_METADATA", "state/d/0123", "state/manifest.ocdbt"],
    ],
    "PyTorch": [["model.pt"], ["last.ckpt"]],
}
CASES = [(program, files) for program, folders in FILES.items() for files in folders]


def make(folder: Path, files: list[str]) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch unpickled'\ntR.")  # a pickle that would leave a trace
    return folder


@pytest.mark.parametrize(("program", "files"), CASES)
def test_they_are_called_by_their_names(program: str, files: list[str], tmp_path: Path) -> None:
    """As the folder of a run, as that of its checkpoints, and as one of these."""
    with pytest.raises(ConfigError, match=f"holds a checkpoint of {program}"):
        Trainer.from_run(make(tmp_path / "as a run", files))
    step = make(tmp_path / "run/checkpoints/100", files)
    x = jax.ShapeDtypeStruct((), np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    with pytest.raises(ConfigError, match=f"holds a checkpoint of {program}.* move it away"):
        Checkpoints(step.parent, keep=1).restore(100, {"x": x})
    assert sorted(str(path.relative_to(step)) for path in step.rglob("*") if path.is_file()) == sorted(files)


@pytest.mark.parametrize(("program", "files"), CASES)
def test_no_run_begins_among_them(program: str, files: list[str], tmp_path: Path) -> None:
    """Not with initial values, where somebody may think that it goes on from them."""
    tree = small.tree(small.write_text(tmp_path / "text"), tmp_path / "run")
    make(tmp_path / "run", files)
    with pytest.raises(ConfigError, match=f"holds a checkpoint of {program}"):
        Trainer(Config.from_dict(tree)).check_folder()


def test_what_a_run_has_is_nobodys(tmp_path: Path) -> None:
    make(
        tmp_path, ["config.yaml", "metrics.jsonl", "tokenizer.json", "checkpoints/100/0.bin", "tensorboard/events.out"]
    )
    assert whose(tmp_path) is whose(tmp_path / "checkpoints/100") is whose(tmp_path / "nowhere") is None
