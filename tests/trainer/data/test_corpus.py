"""What `data.path` may name, and what a user reads when it names something that cannot be trained on."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from trainer.data.corpus import find_files, read_documents
from trainer.errors import ConfigError


def texts(path: str | list[str], text_key: str = "text") -> list[str]:
    return list(read_documents(find_files(path), text_key))


def write(file: Path, content: str | bytes) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def test_standard_library_is_about_12_megabytes_of_sources_without_tests():
    files = find_files("stdlib")
    assert 8e6 < sum(file.stat().st_size for file in files) < 20e6
    assert files == sorted(files)
    assert {file.suffix for file in files} == {".py"}
    folders = {part for file in files for part in file.parts[:-1]}
    assert not folders & {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def test_files_folders_globs_and_lists_name_each_file_once(tmp_path: Path):
    one = write(tmp_path / "a/one.txt", "one")
    write(tmp_path / "a/deep/two.md", "two")
    write(tmp_path / "a/.hidden/three.md", "three")
    write(tmp_path / "b/four.txt", "four")
    assert texts(one) == ["one"]
    assert texts(str(tmp_path / "a")) == ["two", "one"]
    assert texts(str(tmp_path / "**/*.txt")) == ["one", "four"]
    assert texts(str(tmp_path / "*")) == ["two", "one", "four"]
    assert texts([one, str(tmp_path / "a"), str(tmp_path / "b/*")]) == ["two", "one", "four"]


def test_folders_behind_links_are_read_and_loops_end(tmp_path: Path):
    write(tmp_path / "elsewhere/one.txt", "one")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    assert texts(str(tmp_path / "a")) == ["one"]


def test_text_is_kept_to_the_byte(tmp_path: Path):
    assert texts(write(tmp_path / "a.txt", "\ufeff one\r\n\ttwo  \n\n")) == ["\ufeff one\r\n\ttwo  \n\n"]


def test_jsonl_holds_a_document_a_line_and_empty_ones_are_left_out(tmp_path: Path):
    lines = "".join(json.dumps({"body": text}) + "\n" for text in ["one\ntwo", "", "drei \u00fc"]) + "\n"
    assert texts(write(tmp_path / "a.jsonl", lines), "body") == ["one\ntwo", "drei \u00fc"]
    assert texts(write(tmp_path / "b.jsonl.gz", gzip.compress(lines.encode())), "body") == [
        "one\ntwo",
        "drei \u00fc",
    ]


def test_json_that_is_a_document_is_one(tmp_path: Path):
    documents = ['{\n  "name": "a",\n  "text": 1\n}\n', '[{"name": "a"}]', "[1, 2]", "{", '{"name": "a"}', ""]
    for number, document in enumerate(documents):
        write(tmp_path / f"{number}.json", document)
    assert texts(str(tmp_path)) == documents[:-1]


def test_jsonl_has_other_names_and_may_begin_with_a_mark(tmp_path: Path):
    for name in ("a.ndjson", "A.JSONL"):
        assert texts(write(tmp_path / name, '\ufeff{"text": "a"}\n{"text": "b"}\n')) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", r"no text in .*empty\.txt"),
        ("nul.txt", b"abc\0def", r"nul\.txt is binary \(a NUL at byte 3\)"),
        ("latin.txt", b"ab\xe9cd", r"latin\.txt is not UTF-8 \(byte 2 is 0xe9\); convert it"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', r"bad\.jsonl:2 is not JSON"),
        ("latin.jsonl", b'{"text": "\xe9"}', r"latin\.jsonl:1 is not JSON \('utf-8' codec.*position 10"),
        ("list.jsonl", b'["a"]', r"list\.jsonl:1 is a list; each line must be an object"),
        (
            "key.jsonl",
            b'{"id": 1, "texts": "a", "url": "u"}',
            r"only \['id', 'texts', 'url'\]; set data\.text_key=texts",
        ),
        ("numbers.jsonl", b'{"id": 1}', r"numbers\.jsonl:1 has no field 'text'.*no field holds text"),
        (
            "type.jsonl",
            b'{"text": ["a"], "body": "b"}',
            r"1 has a list in 'text' where .* data\.text_key=body",
        ),
        ("int.jsonl", b'{"text": 1}', r"int\.jsonl:1 has a number in 'text' where a text should be; .* leave the line"),
        ("bool.jsonl", b'{"text": true}', r"has true or false in 'text'"),
        ("null.jsonl", b'{"text": null}', r"has null in 'text'"),
        (
            "chat.jsonl",
            b'{"messages": [{"role": "user"}]}',
            r"chat\.jsonl:1 is a conversation \(messages\), not a",
        ),
        ("sharegpt.jsonl", b'{"id": "1", "conversations": []}', r"is a conversation \(conversations\)"),
        ("sft.jsonl", b'{"prompt": "a", "completion": "b"}', r"is a question and its answer \(prompt, completion\)"),
        ("alpaca.jsonl", b'{"instruction": "a", "input": "", "output": "b"}', r"answer \(instruction, output\)"),
        ("dpo.jsonl", b'{"prompt": "a", "chosen": "b", "rejected": "c"}', r"is a choice between answers"),
        ("lines.json", b'{"text": "a"}\n{"text": "b"}\n', r"lines\.json holds JSON lines.* call it \.jsonl"),
        ("other.json", b'{"body": "a"}\r\n\r\n{"body": "b"}', r"holds JSON lines.* texts in 'text'"),
        ("line.json", b'\xef\xbb\xbf{"text": "a"}', r"holds JSON lines"),
        ("lines.json.gz", gzip.compress(b'{"text": "a"}\n{"text": "b"}', mtime=0), r"holds JSON lines"),
        ("array.json", b'[\n  {"text": "a"},\n  {"text": "b"}\n]', r"is a JSON array of records.* one record a line"),
        ("alpaca.json", b'[{"instruction": "a", "output": "b"}]', r"is a JSON array of records"),
        ("text.parquet", b"PAR1", r"text\.parquet is not read \(write its texts into a \.jsonl file"),
        ("text.jsonl.zst", b"\x28\xb5", r"text\.jsonl\.zst is not read \(unpack it, or compress it with gzip\)"),
        ("utf16.txt", "text".encode("utf-16"), r"utf16\.txt is UTF-16; convert it to UTF-8"),
        (
            "surrogate.jsonl",
            b'{"text": "a\\ud800"}',
            r"surrogate\.jsonl:1 has a lone surrogate .* character 1",
        ),
        ("short.jsonl.gz", gzip.compress(b'{"text": "a"}', mtime=0)[:-9], r"short\.jsonl\.gz cannot be read"),
        ("not.txt.gz", b"plain", r"not\.txt\.gz cannot be read \(Not a gzipped file"),
    ],
)
def test_a_file_that_cannot_be_trained_on_is_named_with_the_place(
    tmp_path: Path, name: str, content: bytes, message: str
):
    path = write(tmp_path / name, content)
    with pytest.raises(ConfigError, match=message):
        texts(path)


def test_a_missing_file_names_the_nearest(tmp_path: Path):
    write(tmp_path / "corpus.txt", "text")
    with pytest.raises(ConfigError, match=r"corpsu\.txt does not exist; the nearest is .*/corpus\.txt"):
        find_files(str(tmp_path / "corpsu.txt"))
    with pytest.raises(ConfigError, match="nor does its folder"):
        find_files(str(tmp_path / "nowhere/corpus.txt"))


def test_a_glob_without_match_an_empty_folder_and_an_empty_list_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no file matches .*\*\.txt"):
        find_files(str(tmp_path / "*.txt"))
    with pytest.raises(ConfigError, match="holds no files"):
        find_files(str(tmp_path))
    with pytest.raises(ConfigError, match="empty list"):
        find_files([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path: Path):
    file = write(tmp_path / "folder/secret.txt", "text")
    os.chmod(file, 0)
    with pytest.raises(ConfigError, match=r"secret\.txt cannot be read \(Permission denied\)"):
        texts(file)
    os.chmod(tmp_path / "folder", 0)
    try:
        with pytest.raises(ConfigError, match=r"folder cannot be read \(Permission denied\)"):
            texts(str(tmp_path))
    finally:
        os.chmod(tmp_path / "folder", 0o700)


def test_a_file_that_fails_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same as above where the tests run as root."""
    file = write(tmp_path / "secret.txt", "text")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"secret\.txt cannot be read \(Permission denied\)"):
        texts(file)
