"""Huge pages for what XLA's CPU backend allocates.

It maps its buffers anew each step, and a kernel that hands them out in 4 KiB pages spends 5 to 20 % of it on that.
glibc asks for huge pages when told so before the program starts, and only then.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_VARIABLE, _TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"


def restart_with_huge_pages() -> None:
    """Becomes the same command anew, with the setting, where the kernel gives huge pages to who asks.

    Does nothing where it gives none or gives them to all, or where the user has tuned glibc. To be called first of all.
    """
    if _VARIABLE in os.environ or not _KERNEL.exists() or "[madvise]" not in _KERNEL.read_text():
        return
    os.environ[_VARIABLE] = _TUNABLE
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
