"""Checkpoints that are not of this format, known by the names of their files: nothing of them is opened."""

from __future__ import annotations

from pathlib import Path

PATTERNS = {
    "DeepSpeed": (
        "global_step*",
        "zero_pp_rank_*",
        "mp_rank_*_model_states.pt",
        "*_optim_states.pt",
        "zero_to_fp32.py",
    ),
    "Megatron-LM": (
        "latest_checkpointed_iteration.txt",
        "iter_[0-9]*",
        "mp_rank_*/model_optim_rng.pt",
        "*.distcp",
        "common.pt",
    ),
    "Hugging Face": (
        "*.safetensors",
        "*.safetensors.index.json",
        "pytorch_model*.bin",
        "pytorch_model.bin.index.json",
    ),
    "orbax, as MaxText has them": (
        "_CHECKPOINT_METADATA",
        "commit_success.txt",
        "manifest.ocdbt",
        "[0-9]*/_CHECKPOINT_METADATA",
        "[0-9]*/commit_success.txt",
    ),
    "PyTorch": ("*.pt", "*.pth", "*.ckpt"),
}
"""Program -> what is found in a folder of its checkpoints; the first that fits."""


ARRAYS, META = "arrays", "meta"
"""The two parts of a checkpoint of format 1, each a folder."""


def is_of_format_1(path: Path) -> bool:
    """Whether an older meshwright has written it: orbax's arrays, which `trainer.checkpoint.orbax` reads."""
    return (path / ARRAYS).is_dir() and (path / META).is_dir()


def whose(folder: Path) -> str | None:
    """Who has written the checkpoints that this folder holds or is, if they are no run's of ours."""
    if not folder.is_dir():
        return None
    for program, patterns in PATTERNS.items():
        if any(next(folder.glob(pattern), None) is not None for pattern in patterns):
            return program
    return None


def refusal(folder: Path) -> str | None:
    """What is said of a folder that holds some."""
    program = whose(folder)
    return program and (f"{folder} holds a checkpoint of {program}, and a run goes on from its own alone")
