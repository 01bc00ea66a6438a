"""Turns `data.path` into documents: which files it names, and what text stands in them.

Text is kept to the byte: no newline translation, no stripping. Whatever a user can get wrong about a path
ends in a ConfigError that names the place and the way out. Knows nothing of tokens or caches.
"""

from __future__ import annotations

import difflib
import glob
import gzip
import json
import os
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError

STDLIB = "stdlib"
_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


MOST_BYTES = 1 << 31
"""Of one document: a small file may unpack to more than any memory holds."""


def find_files(path: str | list[str]) -> list[Path]:
    """The files that `data.path` names, each once, sorted.

    A folder stands for every file under it; names that begin with a dot are left out, as a shell's glob does.

    Raises:
      ConfigError: a name that does not exist, a glob without a match, a folder without files or not readable.
    """
    names = [path] if isinstance(path, str) else path
    if not names or not all(name.strip() for name in names):
        raise ConfigError(
            f"data.path is an empty list, or a name in it is empty; name a file, a folder or a glob, or write {STDLIB}"
        )
    found = {file.resolve(): file for name in names for file in _expand(name)}
    return sorted(found.values())


def is_jsonl(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(".jsonl")


def read_documents(files: Sequence[Path], text_key: str) -> Iterator[str]:
    """The text of every document that has some: one a line in a JSONL file (also .jsonl.gz), else one a file.

    Raises:
      ConfigError: a file that cannot be read or is not UTF-8 text, a bad record, or no text in all the files.
    """
    empty = True
    for file in files:
        for text in _read_records(file, text_key) if is_jsonl(file) else _read_text(file):
            if text:
                empty = False
                yield text
    if empty:
        raise ConfigError(f"data.path: no text in {_some(files)}; name files that hold text")


def _expand(name: str) -> list[Path]:
    if name == STDLIB:
        return _standard_library()
    path = Path(name).expanduser()
    with _reading(path):
        if path.is_dir():
            return _files_under(path)
        if path.exists():
            return [path]
    if not glob.has_magic(name):
        raise ConfigError(f"data.path: {path} does not exist; {_nearest_in_folder(path)}")
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    if not matches:
        raise ConfigError(f"data.path: no file matches {name}; mend the pattern (** goes into folders)")
    return [file for match in matches for file in (_files_under(match) if match.is_dir() else [match])]


def _standard_library() -> list[Path]:
    root = sysconfig.get_paths()["stdlib"]
    return [Path(file) for file in _walk(root, skip=_NOT_STDLIB) if file.endswith(".py")]


def _files_under(folder: Path) -> list[Path]:
    files = [Path(file) for file in _walk(str(folder))]
    if not files:
        raise ConfigError(f"data.path: the folder {folder} holds no files; name one that does")
    return files


def _walk(root: str, skip: frozenset[str] = frozenset()) -> Iterator[str]:
    """Files under `root` that are neither hidden nor compiled Python, through symbolic links, each folder once."""

    def unreadable(error: OSError) -> None:
        with _reading(error.filename):
            raise error

    seen: set[str] = set()
    for folder, subfolders, files in os.walk(root, onerror=unreadable, followlinks=True):
        seen.add(os.path.realpath(folder))
        subfolders[:] = [
            name
            for name in subfolders
            if name not in skip
            and name != "__pycache__"
            and not name.startswith(".")
            and os.path.realpath(os.path.join(folder, name)) not in seen
        ]
        yield from (os.path.join(folder, name) for name in files if not name.startswith("."))


def _read_text(file: Path) -> Iterator[str]:
    with _reading(file), _open(file) as stream:
        data = _bounded(file, stream.read(MOST_BYTES + 1))
    nul = data.find(b"\0")
    if nul >= 0:
        raise ConfigError(f"data.path: {file} is binary (a NUL at byte {nul}); leave it out of data.path")
    try:
        yield data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"data.path: {file} is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}); convert it, "
            "or leave it out of data.path"
        ) from error


def _read_records(file: Path, text_key: str) -> Iterator[str]:
    with _reading(file), _open(file) as stream:
        lines = iter(lambda: stream.readline(MOST_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
            if _bounded(file, line).strip():
                yield _record_text(f"{file}:{number}", line, text_key)


def _bounded(file: Path, document: bytes) -> bytes:
    if len(document) > MOST_BYTES:
        raise ConfigError(f"data.path: a document of {file} is longer than {MOST_BYTES:,} bytes; split it")
    return document


def _record_text(source: str, line: bytes, text_key: str) -> str:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"data.path: {source} is not JSON ({error}); mend or remove the line") from error
    if not isinstance(record, dict):
        raise ConfigError(f"data.path: {source} is a {type(record).__name__}; each line must be an object with text")
    if text_key not in record:
        raise ConfigError(
            f"data.path: {source} has no field {text_key!r}, only {sorted(record)}; {_nearest_key(text_key, record)}"
        )
    text = record[text_key]
    if not isinstance(text, str):
        raise ConfigError(
            f"data.path: {source} has a {type(text).__name__} in {text_key!r}; set data.text_key to a field of text"
        )
    return _encodable(source, text)


def _encodable(source: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"data.path: {source} has a lone surrogate (\\u{ord(text[error.start]):04x}) at character "
            f"{error.start}, which UTF-8 cannot hold; mend or remove the line"
        ) from error
    return text


def _nearest_key(text_key: str, record: dict[str, Any]) -> str:
    texts = [key for key, value in record.items() if isinstance(value, str)]
    near = difflib.get_close_matches(text_key, texts, n=1, cutoff=0.0)
    return f"set data.text_key={near[0]}" if near else "none of them holds text, so leave the file out"


def _nearest_in_folder(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"nor does its folder {folder} (the working folder is {Path.cwd()})"
    near = difflib.get_close_matches(path.name, os.listdir(folder), n=1)
    return f"the nearest is {folder / near[0]}" if near else f"name a file, a folder or a glob, or write {STDLIB}"


def _open(file: Path) -> Any:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


@contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"data.path: {path} cannot be read ({reason}); mend it, or leave it out of data.path"
        ) from error


def _some(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{len(files):,} files ({files[0]}, ...)"
