"""What stands in a JSON record: its text, or a word about what it is instead.

Knows nothing of files but what they are called in a message.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from trainer.errors import ConfigError

_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}
_CHATS = (
    ("a conversation", ("messages",)),
    ("a conversation", ("conversations",)),
    ("a choice between answers", ("chosen", "rejected")),
    ("a question and its answer", ("prompt", "completion")),
    ("a question and its answer", ("prompt", "response")),
    ("a question and its answer", ("instruction", "output")),
    ("a question and its answer", ("instruction", "response")),
    ("a question and its answer", ("question", "answer")),
)
"""Records that are no documents, by the fields that they have."""
_HEAD = 1 << 20
"""Characters of a file that are looked at."""


def record_text(source: str, line: bytes, text_key: str) -> str:
    """The text of a line of a JSONL file; `source` says where it stands.

    Raises:
      ConfigError: it holds none.
    """
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"data.path: {source} is not JSON ({error}); mend or remove the line") from error
    if not isinstance(record, dict):
        raise ConfigError(f"data.path: {source} is {_KINDS[type(record)]}; each line must be an object with text")
    text = record.get(text_key)
    if isinstance(text, str):
        return _encodable(source, text)
    if chat := _chat(record):
        raise ConfigError(
            f"data.path: {source} is {chat}, not a document, and training on answers alone is not there yet; write "
            f"each as one text into a field {text_key!r}"
        )
    if text_key in record:
        what = _KINDS[type(text)]
        raise ConfigError(
            f"data.path: {source} has {what} in {text_key!r} where a text should be; {_nearest_key(text_key, record)}"
        )
    raise ConfigError(
        f"data.path: {source} has no field {text_key!r}, only {sorted(record)}; {_nearest_key(text_key, record)}"
    )


def require_no_records(source: str, text: str, text_key: str) -> None:
    """Lets a .json file pass that is a document, such as a config.

    Raises:
      ConfigError: it holds records, which would be trained on with their quotes and braces.
    """
    head = text[:_HEAD].lstrip("\ufeff \t\r\n")
    if head.startswith("["):
        first = _first_value(head[1:].lstrip())
        if isinstance(first, dict) and (isinstance(first.get(text_key), str) or _chat(first)):
            raise ConfigError(
                f"data.path: {source} is a JSON array of records, and would be trained on as it stands; write one "
                "record a line into a .jsonl file, or call it .txt if that is what you want"
            )
        return
    lines = [line for line in head.split("\n") if line.strip()][:2]
    records = [_first_value(line, whole=True) for line in lines]
    if all(isinstance(record, dict) for record in records) and (
        len(records) == 2 or any(text_key in record for record in records)
    ):
        raise ConfigError(
            f"data.path: {source} holds JSON lines, and would be trained on as it stands; call it .jsonl to train on "
            f"the texts in {text_key!r}, or .txt if that is what you want"
        )


def _first_value(text: str, whole: bool = False) -> Any:
    """The JSON that `text` begins with, or is; None where there is none."""
    try:
        value, end = json.JSONDecoder().raw_decode(text.strip() if whole else text)
    except (ValueError, RecursionError):
        return None
    return value if not whole or end == len(text.strip()) else None


def _chat(record: Mapping[str, Any]) -> str | None:
    for what, fields in _CHATS:
        if all(field in record for field in fields) and (len(fields) > 1 or isinstance(record[fields[0]], list)):
            return f"{what} ({', '.join(fields)})"
    return None


def _encodable(source: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"data.path: {source} has a lone surrogate (\\u{ord(text[error.start]):04x}) at character "
            f"{error.start}, which UTF-8 cannot hold; mend or remove the line"
        ) from error
    return text


def _nearest_key(text_key: str, record: Mapping[str, Any]) -> str:
    texts = [key for key, value in record.items() if isinstance(value, str)]
    near = difflib.get_close_matches(text_key, texts, n=1, cutoff=0.0)
    if near:
        return f"set data.text_key={near[0]}"
    what = "the line" if text_key in record else "the file"
    return f"no field holds text, so leave {what} out"
