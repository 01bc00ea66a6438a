"""The restart that asks for huge pages keeps the command as it was."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainer import huge_pages


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that would have been run, under a kernel that gives huge pages to who asks."""
    kernel = tmp_path / "enabled"
    kernel.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_KERNEL", kernel)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "trainer", "train", "x.yaml"])
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command))
    return commands


def test_it_restarts_once(restarts: list[list[str]]) -> None:
    huge_pages.restart_with_huge_pages()
    huge_pages.restart_with_huge_pages()
    assert restarts == [[sys.executable, "-m", "trainer", "train", "x.yaml"]]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


def test_a_user_who_tuned_glibc_is_left_alone(restarts: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    huge_pages.restart_with_huge_pages()
    assert not restarts


@pytest.mark.parametrize("setting", ["[always] madvise never", "always madvise [never]"])
def test_a_kernel_that_need_not_be_asked(
    restarts: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str
) -> None:
    (tmp_path / "enabled").write_text(setting)
    huge_pages.restart_with_huge_pages()
    assert not restarts
