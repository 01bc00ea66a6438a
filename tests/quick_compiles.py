"""Programs for CPU devices compiled with few optimisations, which halves the time of most tests.

What is compared is then compared among such programs, unless a test is marked `optimised`: golden losses, and bits that
are compared with those of another process, which compiles as it does for a user. Programs for GPUs are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jax._src import compiler

_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@contextmanager
def quick_compiles() -> Iterator[None]:
    """`with` it around what is compiled."""
    usual = compiler.get_compile_options

    def get_compile_options(*args: Any, backend: Any = None, **options: Any) -> Any:
        compile_options = usual(*args, backend=backend, **options)
        if backend is not None and backend.platform == "cpu":
            compile_options.env_option_overrides = [*compile_options.env_option_overrides, *_OPTIONS.items()]
        return compile_options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", get_compile_options)
        yield
