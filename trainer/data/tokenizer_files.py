"""What a tokenizer's files say: tokenizer.json, and what its folder's tokenizer_config.json names its tokens.

A file that is no tokenizer.json but well known is told by its name or content, with the way to make one of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from trainer.errors import ConfigError

TOKENIZER, NAMES = "tokenizer.json", "tokenizer_config.json"
_CONVERT = (
    "make a tokenizer.json of it, with transformers: "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OTHER), and name OTHER"
)
_OTHERS = {
    ".model": f"is a model of sentencepiece or tiktoken, not a tokenizer.json; {_CONVERT}",
    ".tiktoken": f"is of tiktoken, not a tokenizer.json; {_CONVERT}",
    ".bpe": f"holds merges alone, not a tokenizer.json; {_CONVERT}",
    ".txt": f"is a list of words or merges, not a tokenizer.json; {_CONVERT}",
}


@dataclass(frozen=True)
class Names:
    """What the tokens at the ends of a text are called, where that is known."""

    end: str | None = None
    start: str | None = None


def read_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, Names]:
    """A tokenizer.json, or one in a folder with the names that a tokenizer_config.json beside it gives.

    Raises:
      ConfigError: it is not there, or something else.
    """
    if path.is_dir():
        return _read(_in_folder(path)), _read_names(path / NAMES)
    if not path.is_file():
        raise ConfigError(f"data.tokenizer: {path} does not exist; name a tokenizer.json, or leave the key out")
    return _read(path), Names()


def write_tokenizer(inner: tokenizers.Tokenizer, names: Names, folder: Path) -> None:
    """What `read_tokenizer` reads from `folder`."""
    inner.save(str(folder / TOKENIZER))
    starts = names.start != names.end
    content = {"eos_token": names.end, "bos_token": names.start, "add_bos_token": starts}
    (folder / NAMES).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def added_in_front(description: Mapping[str, Any]) -> str | None:
    """The token that a tokenizer.json's own post-processor puts before a text."""
    return _in_front(description["post_processor"] or {"type": "none"})


def _in_front(step: Mapping[str, Any]) -> str | None:
    match step["type"]:
        case "TemplateProcessing":
            first = step["single"][0].get("SpecialToken") if step["single"] else None
            return first["id"] if first else None
        case "BertProcessing" | "RobertaProcessing":
            return step["cls"][0]
        case "Sequence":
            return next((name for part in step["processors"] if (name := _in_front(part))), None)
    return None


def _in_folder(folder: Path) -> Path:
    if (folder / TOKENIZER).is_file():
        return folder / TOKENIZER
    others = [name for name in ("tokenizer.model", "tekken.json", "vocab.json") if (folder / name).is_file()]
    if others:
        raise ConfigError(f"data.tokenizer: {folder} has no {TOKENIZER}, but {', '.join(others)}; {_CONVERT}")
    raise ConfigError(f"data.tokenizer: {folder} has no {TOKENIZER}; name a folder that has one, or leave the key out")


def _read(file: Path) -> tokenizers.Tokenizer:
    if what := _OTHERS.get(file.suffix):
        raise ConfigError(f"data.tokenizer: {file} {what}")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"data.tokenizer: {file} {_what_it_is(file) or f'is not a {TOKENIZER} ({error})'}") from error


def _what_it_is(file: Path) -> str | None:
    """A word about JSON of another kind."""
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError, OSError):
        return None
    if not isinstance(content, dict) or not content:
        return None
    if isinstance(content.get("vocab"), list) and "config" in content:
        return f"is of Mistral's tekken, not a {TOKENIZER}; {_CONVERT}"
    if file.name == NAMES or "tokenizer_class" in content:
        return f"says how a tokenizer is used, and holds none; name the {TOKENIZER} beside it, or their folder"
    if all(isinstance(id, int) for id in content.values()):
        return f"is a vocabulary alone, not a {TOKENIZER}; {_CONVERT}"
    return None


def _read_names(file: Path) -> Names:
    if not file.is_file():
        return Names()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        end, start = (_content(content.get(key)) for key in ("eos_token", "bos_token"))
        adds = content.get("add_bos_token")
    except (ValueError, RecursionError, OSError, AttributeError) as error:
        raise ConfigError(f"data.tokenizer: {file} cannot be read ({error}); mend it, or take it away") from error
    if adds is None:
        return Names(end)
    return Names(end, start if adds else end)


def _content(token: Any) -> str | None:
    """Of a token that stands there as a text, or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
