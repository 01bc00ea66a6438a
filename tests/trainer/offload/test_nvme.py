"""What can go wrong with a disk is said in one line, as early as it can be known; nothing is lost in silence."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainer.errors import ConfigError, OffloadError
from trainer.offload.lanes import Lanes
from trainer.offload.nvme import Nvme

SIZES = [20_000] * 6


def open_records(folder: Path, **options: Any) -> contextlib.closing[Nvme]:
    return contextlib.closing(Nvme(folder / "records", SIZES, block=8192, direct=False, **options))


def fails(code: int) -> Callable[..., Any]:
    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def fill(tier: Nvme) -> None:
    for record, array in tier.sweep(range(6), read=False):
        array[:] = record + 1


def contents(tier: Nvme) -> list[set[int]]:
    """The values in each record."""
    return [set(np.unique(array).tolist()) for _, array in tier.sweep(range(6), write=False)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["preadv", "pwritev"])
def test_a_disk_that_fails_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    with open_records(tmp_path) as tier:
        fill(tier)
        threads = threading.active_count()
        monkeypatch.setattr(os, call, fails(code))
        done = {"preadv": "read", "pwritev": "written"}[call]
        told = rf"^{tmp_path}/records, .* {done} at byte 0 \({os.strerror(code)}\); check that disk .* run again"
        with pytest.raises(OffloadError, match=told):
            for _ in tier.sweep(range(6)):
                pass
        assert threading.active_count() == threads
        monkeypatch.undo()
        assert contents(tier) == [{record + 1} for record in range(6)]


def test_a_write_that_fails_last_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_records(tmp_path) as tier:
        sweep = tier.sweep([4])
        next(sweep)
        monkeypatch.setattr(os, "pwritev", fails(errno.ENOSPC))
        with pytest.raises(OffloadError, match=f"written at byte {4 * 20_480:,} "):
            next(sweep)


def test_a_write_that_fails_is_told_to_who_closes_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_records(tmp_path) as tier:
        monkeypatch.setattr(os, "pwritev", fails(errno.ENOSPC))
        sweep = tier.sweep(range(6))
        next(sweep)
        next(sweep)
        with pytest.raises(OffloadError, match="written at byte 0 "):
            sweep.close()


def test_requests_done_in_part_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a whole page on: direct I/O cannot begin elsewhere."""
    begun = set()

    def in_part(call: Callable[..., int]) -> Callable[..., int]:
        def move(file: int, views: list[memoryview], offset: int) -> int:
            begun.add(offset % 4096)
            return call(file, [views[0][:5000]], offset)

        return move

    monkeypatch.setattr(os, "preadv", in_part(os.preadv))
    monkeypatch.setattr(os, "pwritev", in_part(os.pwritev))
    with open_records(tmp_path) as tier:
        fill(tier)
        assert contents(tier) == [{record + 1} for record in range(6)]
    assert begun == {0}


@pytest.mark.parametrize("count", [0, 100])
def test_a_request_that_gets_nowhere_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    with open_records(tmp_path) as tier:
        monkeypatch.setattr(os, "preadv", lambda *arguments: count)
        with pytest.raises(OffloadError, match=r"read at byte 0 \(no more than part of a page"):
            next(tier.sweep([0]))


def test_the_lock_of_another_process_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "records"
    lock = f"import fcntl; file = open({str(path)!r}, 'wb'); fcntl.flock(file, fcntl.LOCK_EX)"
    program = f"{lock}; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ConfigError, match=f"records is in use by process {other.pid}, .* name another folder"):
            open_records(tmp_path)
        assert path.exists()
        other.communicate(b"\n")


def test_one_process_has_a_file_once(tmp_path: Path) -> None:
    with open_records(tmp_path), pytest.raises(ConfigError, match="is in use by"):
        open_records(tmp_path)


def test_what_a_dead_run_has_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(b"left" * 100_000)
    with open_records(tmp_path) as tier:
        assert contents(tier) == [{0}] * 6
        assert (tmp_path / "records").stat().st_size == tier.file_bytes == 6 * 20_480


@pytest.mark.parametrize("keep", [False, True])
def test_the_file_is_gone_after_close_unless_kept(tmp_path: Path, keep: bool) -> None:
    with open_records(tmp_path, keep=keep) as tier:
        fill(tier)
        tier.close()
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [6 * 20_480] * keep


def no_folder(folder: Path) -> Path:
    return folder / "missing" / "records"


def not_a_folder(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "records"


def is_a_folder(folder: Path) -> Path:
    return folder


@pytest.mark.parametrize("place", [no_folder, not_a_folder, is_a_folder])
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    path = place(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be opened for offloading \(.*\); name a folder") as caught:
        Nvme(path, SIZES)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_place_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", fails(errno.EACCES))  # no permissions stop root
    with pytest.raises(ConfigError, match=r"Permission denied.*that you may write"):
        open_records(tmp_path)


@pytest.mark.parametrize("fault", ["free", "posix_fallocate"])
def test_a_disk_without_room_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    free = 2048 if fault == "free" else 2**20
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    if fault == "posix_fallocate":
        monkeypatch.setattr(os, "posix_fallocate", fails(errno.ENOSPC))
    told = {"free": "2.00 KiB", "posix_fallocate": "1.00 MiB"}[fault]
    with pytest.raises(ConfigError, match=f"records needs 120.00 KiB, and {told} are free .*; make room"):
        open_records(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (8192, r"a file may have 8.00 KiB \(File too large\); raise that limit, `ulimit -f`"),
        (resource.RLIM_INFINITY, r"its file system has no files so large \(File too large\); name a folder on another"),
    ],
)
def test_a_limit_of_files_is_not_told_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, told: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    monkeypatch.setattr(os, "posix_fallocate", fails(errno.EFBIG))
    with pytest.raises(ConfigError, match=f"records needs 120.00 KiB, and {told}"):
        open_records(tmp_path)


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fails(errno.ENOLCK))
    with pytest.raises(
        ConfigError, match=r"records cannot be locked .*\(No locks available\); name a folder on a local"
    ):
        open_records(tmp_path)


def test_a_file_system_without_direct_io_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "fcntl", fails(errno.EINVAL))
    with pytest.raises(ConfigError, match=r"has no direct I/O \(Invalid argument\); name a folder on a local disk"):
        Nvme(tmp_path / "records", SIZES)
    assert not list(tmp_path.iterdir())


def test_what_is_not_asked_for_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_records(tmp_path) as tier:
        monkeypatch.setattr(os, "preadv", fails(errno.EIO))
        fill(tier)
        monkeypatch.undo()
        monkeypatch.setattr(os, "pwritev", fails(errno.EIO))
        assert contents(tier) == [{record + 1} for record in range(6)]


def test_a_sweep_is_over_when_the_next_begins(tmp_path: Path) -> None:
    with open_records(tmp_path) as tier:
        left = tier.sweep(range(6))
        next(left)
        assert contents(tier) == [{0}] * 6
        assert list(left) == []


def test_the_way_of_each_record_is_noted(tmp_path: Path) -> None:
    lanes = Lanes()
    with open_records(tmp_path, lanes=lanes) as tier:
        list(tier.sweep(range(6)))
        list(tier.sweep([2], write=False))
    notes = Counter((span.lane, span.label) for span in lanes.spans)
    assert notes == Counter(
        [(lane, f"record {i}") for lane in ("read", "write") for i in range(6)] + [("read", "record 2")]
    )
    assert all(span.start <= span.end for span in lanes.spans)


def test_reads_and_writes_go_on_while_a_record_is_in_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = set()

    def noted(lane: str, call: Callable[..., int]) -> Callable[..., int]:
        def move(file: int, views: list[memoryview], offset: int) -> int:
            count = call(file, views, offset)
            done.add((lane, offset // 20_480))
            return count

        return move

    monkeypatch.setattr(os, "preadv", noted("read", os.preadv))
    monkeypatch.setattr(os, "pwritev", noted("write", os.pwritev))
    with open_records(tmp_path, buffers=4) as tier, contextlib.closing(tier.sweep(range(6))) as sweep:
        next(sweep)
        next(sweep)  # gives record 0 back, and has record 1 in hand
        expected = {("write", 0), *(("read", record) for record in range(5))}
        deadline = time.monotonic() + 20
        while done != expected and time.monotonic() < deadline:
            time.sleep(0.001)
        assert done == expected
