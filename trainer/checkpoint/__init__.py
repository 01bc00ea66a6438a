"""Checkpoints of a run: saved behind training, whole or not at all, verified, on whatever mesh they are loaded."""

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.keep import Keep
from trainer.checkpoint.later import Later, Read, made
from trainer.checkpoint.origin import Origin, find_origin

__all__ = ["Checkpoints", "Keep", "Later", "Origin", "Read", "find_origin", "made"]
