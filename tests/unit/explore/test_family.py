"""Which processes of a run are killed, and when; the processes are of this test, not Ray's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dstack.explore import family
from dstack.explore.family import KILLED_WITHIN_S, VARIABLE, Disturbance, members, planned_kills
from dstack.probes.connection.own_cluster import worker_title
from tests.processes import wait_until

SOON_S = 20.0
TITLED = "import ctypes, time; ctypes.CDLL(None).prctl(15, {title!r}, 0, 0, 0); print(1, flush=True); time.sleep(600)"
"""Names its process by prctl(2), as the kernel shows it."""


@contextlib.contextmanager
def process(directory: Path, title: str) -> Iterator[psutil.Popen]:
    """A process of a run with this name."""
    code = TITLED.format(title=title.encode())
    command = [sys.executable, "-c", code]
    with psutil.Popen(command, env={VARIABLE: str(directory)}, stdout=-1) as one:
        assert one.stdout is not None
        one.stdout.readline()
        try:
            yield one
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


@pytest.mark.parametrize("title", ["ray::Shop", "ray::Shop.work", "ray::leaf", "ray::IDLE", "ray::IDLE.x"])
def test_a_worker_has_the_name_of_what_it_runs(title: str, tmp_path: Path) -> None:
    with process(tmp_path, title) as one:
        assert worker_title(psutil.Process(one.pid)) == title


@pytest.mark.parametrize(
    "title", ["ray::DashboardA", "ray::RuntimeEnv", "ray::IDLE_Spill", "ray::SPILL_Spil", "raylet"]
)
def test_agents_and_movers_of_objects_are_no_workers(title: str, tmp_path: Path) -> None:
    with process(tmp_path, title) as one:
        assert worker_title(psutil.Process(one.pid)) == ""


def test_only_workers_that_run_something_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "KILLED_WITHIN_S", (0.0, 0.01))
    with (
        process(tmp_path, "ray::IDLE") as idle,
        process(tmp_path, "ray::DashboardA") as agent,
        process(tmp_path, "ray::Shop.work") as busy,
    ):
        assert len(members(str(tmp_path))) == 3
        with Disturbance(str(tmp_path), kills=1, kill_seed=3) as disturbance:
            killed = wait_until(lambda: disturbance.killed, deadline_s=SOON_S, what=lambda: str(members(str(tmp_path))))
            assert busy.wait(timeout=SOON_S) == -9
        assert (killed, idle.poll(), agent.poll()) == (["Shop.work"], None, None)


def test_without_workers_it_ends_at_once(tmp_path: Path) -> None:
    with Disturbance(str(tmp_path), kills=2, stop_ms=100):
        pass


def test_a_seed_gives_the_same_kills() -> None:
    least_s, most_s = KILLED_WITHIN_S
    assert planned_kills(3, 7) == planned_kills(3, 7) == sorted(planned_kills(3, 7))
    assert planned_kills(1, 7) != planned_kills(1, 8)
    assert all(least_s <= at_s <= most_s and 0 <= place < 1 for at_s, place in planned_kills(50, 1))
