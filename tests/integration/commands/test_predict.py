"""``dstack predict`` on runs that passed: programs that can hang in another order, and healthy ones like them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clusters.dstack_command import Json, dstack
from tests.clusters.ray_clusters import address_of_cluster_in, own_environment
from tests.paths import ROOT
from tests.processes import kill_group

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

PROGRAMS = ROOT / "tests" / "explore_programs"
PREDICTED = (
    "async_one_slot",
    "asyncio_locks",
    "bounded_queue",
    "concurrency_groups",
    "coordinator_pool",
    "full_gate",
    "get_in_async",
    "lock_service",
    "nested_resource",
    "ring_of_three",
    "stream_and_settings",
    "two_actors",
)
NEEDED = ("actor_tree", "gang_of_actors", "nested_gpu")
"""Programs that hang on a smaller cluster: what they need is said."""
HEALTHY = sorted(path.stem for path in (PROGRAMS / "healthy").glob("*.py") if path.stem != "__init__")
RUN_S = 60.0
REPORTED_S = 1.5
"""Workers report their task events once a second."""


@contextmanager
def having_run(program: Path) -> Iterator[Json]:
    """The prediction for a program that has run to its end, in an interpreter that stays."""
    with own_environment() as environment:
        driver = subprocess.Popen(
            [sys.executable, "-i", str(program)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            driver.stdin.write(f"import time; time.sleep({REPORTED_S}); print('it is over', flush=True)\n")
            driver.stdin.flush()
            lines = iter(driver.stdout.readline, "")
            assert any("it is over" in line for line in lines)
            address = address_of_cluster_in(Path(environment["RAY_TMPDIR"]))
            done = dstack("predict", "--json", "--address", address, environment=environment)
            assert done.returncode == 0, done
            yield json.loads(done.stdout)["prediction"]
        finally:
            kill_group(driver)
            driver.stdin.close()
            driver.stdout.close()


@pytest.mark.timeout(RUN_S)
@pytest.mark.parametrize("name", PREDICTED)
def test_a_deadlock_that_did_not_happen_is_predicted(name: str) -> None:
    with having_run(PROGRAMS / f"{name}.py") as prediction:
        assert prediction["possible"]


@pytest.mark.timeout(RUN_S)
@pytest.mark.parametrize("name", NEEDED)
def test_what_a_program_needs_on_a_smaller_cluster_is_said(name: str) -> None:
    with having_run(PROGRAMS / f"{name}.py") as prediction:
        assert not prediction.get("possible")
        assert prediction["needs"]


@pytest.mark.timeout(RUN_S)
@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_predicted_for_a_healthy_program(name: str) -> None:
    with having_run(PROGRAMS / "healthy" / f"{name}.py") as prediction:
        assert not prediction.get("possible")
