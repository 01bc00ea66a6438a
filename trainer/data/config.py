"""Where the text comes from."""

from __future__ import annotations

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from trainer.path_types import CachePath, LocalPath, LocalPaths


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class DataConfig:
    path: LocalPaths = "stdlib"
    """`stdlib` (the sources of the Python standard library), or files, folders or globs of text and JSONL, or
    the prefix of a Megatron .bin/.idx pair."""
    tokenizer: LocalPath | None = None
    """A tokenizer.json, or a folder that has one; unless given, a byte-level BPE of model.vocab entries is trained on
    the text."""
    end_token: str | None = None
    """The special token of data.tokenizer that ends a document; unless given, the eos_token of the folder's
    tokenizer_config.json, or the first of the usual names."""
    start_token: str | None = None
    """The special token of data.tokenizer that a document begins with; unless given, the one that the tokenizer puts
    before a text, or else documents begin after the token that ends the one before."""
    text_key: str = "text"
    """The field of a JSONL record that holds the text."""
    holdout: float = Field(default=0.02, ge=0, lt=1)
    """The part of the documents that is never trained on; where there is one alone, the last part of its tokens."""
    cache: CachePath = "~/.cache/meshwright/data"
    """Where tokenised text is kept, by the hash of what it was made from."""
    prefetch: int = Field(default=2, ge=1)
    """Batches made ready ahead of the step."""
