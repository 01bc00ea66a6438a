"""What every test stands on: eight virtual CPU devices, compiled programs kept between runs, an empty home.

Programs that a test starts have the same cache and no GPU either, but as many devices as a user's: what they need they
say themselves. jax reads the environment when it is imported, so nothing above it may import jax.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("busy", deadline=None)  # other work on the machine is no fault of a test
settings.load_profile("busy")

ROOT = Path(__file__).parents[1]

LONGEST = (
    "trainer/planner/test_off_device.py",
    "trainer/test_equality.py",
    "trainer/failures/test_rollback_run.py",
    "trainer/test_run.py",
    "trainer/offload/test_offloaded.py",
    "trainer/test_remesh.py",
    "trainer/test_checkpoint.py",
    "trainer/planner/test_plan.py",
    "models/test_documents.py",
    "sharding/test_randomness.py",
    "trainer/offload/test_streamed.py",
    "trainer/planner/test_search.py",
    "trainer/offload/test_layers_on_nvme.py",
    "trainer/test_wire.py",
    "trainer/test_step.py",
    "trainer/failures/test_watchdog.py",
    "trainer/planner/test_ledger.py",
    "docs/test_pages.py",
    "docs/test_fresh.py",
    "trainer/planner/test_layers_on_nvme.py",
    "sharding/pipeline/test_executor.py",
    "trainer/offload/test_offloaded_run.py",
    "trainer/processes/test_several.py",
    "benchmarks/test_checkpoint_memory.py",
    "benchmarks/test_pipeline.py",
)
"""Test files by the time that they took (`pytest --durations=0`), the longest first."""

os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_COMPILATION_CACHE_DIR=str(ROOT / ".pytest_cache/d/xla"),  # emptied by `pytest --cache-clear`
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",  # most of the tests' time goes into many tiny programs
)


def pytest_configure() -> None:
    """Settles how many devices this process has, before a test file can start JAX as it is collected."""
    import jax  # not before the settings above

    jax.config.update("jax_num_cpu_devices", 8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a worker that is given one last leaves the others idle."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(ROOT / "tests").as_posix(), len(places)))


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's own caches."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def all_devices() -> None:
    """All eight are there, whichever test is first: a config for one device would leave the others without."""
    import jax

    assert len(jax.devices()) == 8


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(request: pytest.FixtureRequest, all_devices: None) -> Iterator[None]:
    """Programs are compiled quickly, but in files whose `pytestmark` is `optimised`."""
    from tests.quick_compiles import quick_compiles  # imports jax

    with contextlib.nullcontext() if request.node.get_closest_marker("optimised") else quick_compiles():
        yield
