"""Which text a run is measured on: what was held out of its own, or all of another, told by what is read.

Knows data and hashes, not models.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trainer.data.config import DataConfig
from trainer.data.prepare import Corpus, files_in_both
from trainer.data.tokenizer_files import TOKENIZER
from trainer.errors import ConfigError

_MOST_NAMED = 3  # files


def data_to_measure(asked: DataConfig, trained: DataConfig, folder: Path) -> DataConfig:
    """`asked`, but other text comes in the tokens that the model knows: those of the run in `folder`.

    Raises:
        ConfigError: it asks for other tokens, or for another part of the run's own text.
    """
    if asked.path == trained.path:
        _require_holdout(asked, trained)
    if not (folder / TOKENIZER).exists():
        return asked
    for key in ("tokenizer", "end_token", "start_token"):
        if getattr(asked, key) != getattr(trained, key):
            raise ConfigError(f"the model knows the tokens of {folder / TOKENIZER} alone; leave data.{key} out")
    if asked == trained:
        return asked
    return dataclasses.replace(asked, tokenizer=str(folder), end_token=None, start_token=None)


def is_another_text(corpus: Corpus, trained_hash: str | None, asked: DataConfig, trained: DataConfig | None) -> bool:
    """Whether `corpus`, which `asked` names, is not the text of the run, which `trained` or nothing else names.

    Args:
        trained_hash: of the run's text, where that is known.

    Raises:
        ConfigError: it is another, though its name is the run's; or the same, of which another part is asked for.
    """
    is_another = trained_hash is not None and trained_hash not in (corpus.hash, corpus.text_hash)
    if is_another and (trained is None or asked.path == trained.path):
        raise ConfigError(
            f"the text behind data.path has changed since the run was trained ({trained_hash} -> {corpus.hash}), so "
            "which of its documents were held out is not known; bring it back, or give a text that the run was not "
            "trained on: data.path=..."
        )
    if trained is not None and not is_another:
        _require_holdout(asked, trained)
    return is_another


def in_words(corpus: Corpus, is_another: bool, asked: DataConfig, trained: DataConfig | None) -> str:
    """Which documents count."""
    if not is_another:
        return f"measured on the run's own held-out text: {len(corpus.heldout_documents):,} documents"
    what = f"measured on all {corpus.whole.num_documents:,} documents of data.path={asked.path}"
    if not (seen := files_in_both(asked, trained) if trained else []):
        return f"{what}, of which no file was in the run's text"
    named = ", ".join(map(str, seen[:_MOST_NAMED])) + ", ..." * (len(seen) > _MOST_NAMED)
    return f"{what}. WARNING: {len(seen):,} of its files were in the run's text, and may have been trained on: {named}"


def _require_holdout(asked: DataConfig, trained: DataConfig) -> None:
    if asked.holdout != trained.holdout:
        raise ConfigError(
            f"data.holdout={asked.holdout}: the model was trained on all but {trained.holdout} of the documents, and "
            "is measured on no other; leave data.holdout out, or give another text as data.path"
        )
