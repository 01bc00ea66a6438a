"""Turns `data.path` into documents: which files it names, and what text stands in them.

Text is kept to the byte: no newline translation, no stripping. Whatever a user can get wrong about a path
ends in a ConfigError that names the place and the way out. Knows nothing of tokens or caches.
"""

from __future__ import annotations

import difflib
import glob
import gzip
import os
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from trainer.data.records import record_text, require_no_records
from trainer.errors import ConfigError
from trainer.paths import STDLIB
from trainer.run_mark import is_run

_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
_UNREAD = {
    **dict.fromkeys((".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".7z"), "unpack it, or compress it with gzip"),
    **dict.fromkeys((".parquet", ".arrow", ".feather"), "write its texts into a .jsonl file, one record a line"),
}
"""Endings of well-known files that hold text in another way, and what to do with them."""
MOST_BYTES = 1 << 31
"""Of one document: a small file may unpack to more than any memory holds."""


def find_files(path: str | list[str], say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """The files that `data.path` names, each once, sorted.

    A folder stands for every file under it; names that begin with a dot are left out, as a shell's glob does. So is
    what runs have written, unless a file of theirs is named itself: else the text of a run whose folder stands there
    would be another at its next start. `say` is told.

    Raises:
      ConfigError: a name that does not exist, a glob without a match, a folder without files or not readable.
    """
    names = [path] if isinstance(path, str) else path
    if not names or not all(name.strip() for name in names):
        raise ConfigError(
            f"data.path is an empty list, or a name in it is empty; name a file, a folder or a glob, or write {STDLIB}"
        )
    found = {file.resolve(): file for name in names for file in _expand(name, say)}
    return sorted(found.values())


def is_jsonl(file: Path) -> bool:
    return _kind(file) in (".jsonl", ".ndjson")


def read_documents(files: Sequence[Path], text_key: str) -> Iterator[str]:
    """The text of every document that has some: one a line in a JSONL file (also .jsonl.gz), else one a file.

    Raises:
      ConfigError: a file that cannot be read or is not UTF-8 text, a bad record, or no text in all the files.
    """
    empty = True
    for file in files:
        for text in _read_records(file, text_key) if is_jsonl(file) else _read_text(file, text_key):
            if text:
                empty = False
                yield text
    if empty:
        raise ConfigError(f"data.path: no text in {_some(files)}; name files that hold text")


def _expand(name: str, say: Callable[[str], None]) -> list[Path]:
    if name == STDLIB:
        return _standard_library()
    path = Path(name)
    with _reading(path):
        if path.is_dir():
            return _without_runs(path, _files_under(path), say)
        if path.exists():
            return [path]
    if not glob.has_magic(name):
        raise ConfigError(f"data.path: {path} does not exist; {_nearest_in_folder(path)}")
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    if not matches:
        raise ConfigError(f"data.path: no file matches {name}; mend the pattern (** goes into folders)")
    files = [file for match in matches for file in (_files_under(match) if match.is_dir() else [match])]
    return _without_runs(Path(*takewhile(lambda part: not glob.has_magic(part), path.parts)), files, say)


def _without_runs(root: Path, files: Sequence[Path], say: Callable[[str], None]) -> list[Path]:
    """Those that are in no run's folder from `root` on."""
    is_of_run = cache(is_run)

    def is_kept(file: Path) -> bool:
        inside = [*takewhile(lambda folder: folder != root, file.parents), root]
        return not any(map(is_of_run, inside))

    kept = list(filter(is_kept, files))
    if not kept:
        raise ConfigError(f"data.path: {root} holds nothing but what runs have written; name files of text")
    if len(kept) < len(files):
        say(f"data: {len(files) - len(kept):,} files under {root} are a run's own, and are left out")
    return kept


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


def _read_text(file: Path, text_key: str) -> Iterator[str]:
    if (kind := _kind(file)) in _UNREAD:
        raise ConfigError(f"data.path: {file} is not read ({_UNREAD[kind]}), or leave it out of data.path")
    with _reading(file), _open(file) as stream:
        data = _bounded(file, stream.read(MOST_BYTES + 1))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"data.path: {file} is UTF-16; convert it to UTF-8, or leave it out of data.path")
    nul = data.find(b"\0")
    if nul >= 0:
        raise ConfigError(f"data.path: {file} is binary (a NUL at byte {nul}); leave it out of data.path")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"data.path: {file} is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}); convert it, "
            "or leave it out of data.path"
        ) from error
    if kind == ".json":
        require_no_records(str(file), text, text_key)
    yield text


def _kind(file: Path) -> str:
    """The ending of its name, without that of gzip."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def _read_records(file: Path, text_key: str) -> Iterator[str]:
    with _reading(file), _open(file) as stream:
        lines = iter(lambda: stream.readline(MOST_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
            if _bounded(file, line).strip():
                yield record_text(f"{file}:{number}", line, text_key)


def _bounded(file: Path, document: bytes) -> bytes:
    if len(document) > MOST_BYTES:
        raise ConfigError(f"data.path: a document of {file} is longer than {MOST_BYTES:,} bytes; split it")
    return document


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
