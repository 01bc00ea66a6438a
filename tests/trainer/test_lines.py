"""Lines come from the end as they stand in the file, wherever blocks are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer import lines


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "\n\nab\nc", "abc\ndefghij\n\nk\n", "a\r\nb\rc\n"])
def test_lines_backwards_are_the_lines(text: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    file = tmp_path / "a.txt"
    file.write_bytes(text.encode())
    found = list(lines.backwards(file))
    with file.open("rb") as forward:
        assert [line for _, line in reversed(found)] == forward.readlines()
    assert all(text.encode()[place : place + len(line)] == line for place, line in found)
