"""A session keeps its probes, replaces lost ones, follows the cluster, and leaves nothing behind however it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.hosts import Hosts
from tests.hosts.command import PYTHONPATH, dstack_processes
from tests.hosts.rings import ring
from tests.processes import Child, carrying, command_line, stopped, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]

PROGRAM = Path(__file__).with_name("drivers") / "session.py"
SNAPSHOT_S = 60.0
"""Deadline for a snapshot on a busy machine."""
CLEANUP_S = 60.0
"""Deadline for the end of dstack's processes."""
UNUSED_S = 90.0
"""Deadline for the end of probes that are not used for a minute."""


@contextmanager
def session(hosts: Hosts) -> Iterator[Child]:
    """A session on the first host, which is killed at the end."""
    with hosts.start(1, [sys.executable, str(PROGRAM), hosts.address], PYTHONPATH=PYTHONPATH) as child:
        yield child


def probes(hosts: Hosts) -> set[int]:
    """The pids of all probes."""
    return {one.pid for one in carrying(hosts.tag) if " ".join(command_line(one)).startswith("ray::ProbeActor")}


def results(child: Child) -> list[str]:
    """What the session has printed, without the numbers."""
    return [line.partition(" ")[2] for line in child.log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def next_result(child: Child) -> str:
    """The result of a snapshot that begins from now on."""
    number = len(results(child)) + 2
    child.wait_for_line(f"{number} ", deadline_s=2 * SNAPSHOT_S)
    return results(child)[number - 1].strip()


def assert_nothing_left(hosts: Hosts) -> None:
    wait_until(
        lambda: not dstack_processes(hosts), deadline_s=CLEANUP_S, what=lambda: f"end of {dstack_processes(hosts)}"
    )


def test_a_session_keeps_its_probes_and_replaces_a_killed_one(three_hosts: Hosts) -> None:
    with ring(three_hosts, [2, 3]):
        with session(three_hosts) as child:
            child.wait_for_line("1 deadlock 3 []", deadline_s=SNAPSHOT_S)
            first = probes(three_hosts)
            assert len(first) == 2
            assert next_result(child) == "deadlock 3 []"
            assert probes(three_hosts) == first

            killed = min(first)
            psutil.Process(killed).kill()
            assert next_result(child) == "deadlock 3 []"
            assert next_result(child) == "deadlock 3 []"
            assert probes(three_hosts) & first == first - {killed}
            assert len(probes(three_hosts)) == 2
        assert_nothing_left(three_hosts)


@pytest.mark.exhaustive
def test_probes_end_by_themselves_and_are_started_again(three_hosts: Hosts) -> None:
    with ring(three_hosts, [2, 3]), session(three_hosts) as child:
        child.wait_for_line("1 deadlock 3 []", deadline_s=SNAPSHOT_S)
        first = probes(three_hosts)
        (program,) = psutil.Process(child.pid).children()
        with stopped(program):
            wait_until(lambda: not probes(three_hosts), deadline_s=UNUSED_S, what=lambda: "end of unused probes")

        assert next_result(child) == "deadlock 3 []"
        assert len(probes(three_hosts) - first) == 2
    assert_nothing_left(three_hosts)


@pytest.mark.exhaustive
def test_a_session_follows_hosts_that_join_and_die() -> None:
    with Hosts(2) as hosts, ring(hosts, [1, 2]):
        with session(hosts) as child:
            child.wait_for_line("1 deadlock 2 []", deadline_s=SNAPSHOT_S)
            joining = hosts.add()
            wait_until(joining.is_complete, deadline_s=120, what=lambda: "one more host")
            assert next_result(child) == "deadlock 3 []"

            hosts.kill(joining.number)
            wait_until(
                lambda: results(child)[-1].strip() == "deadlock 2 []",
                deadline_s=120,
                what=lambda: f"a snapshot without the dead host: {child}",
            )
            assert len(probes(hosts)) == 1
        assert_nothing_left(hosts)


@pytest.mark.exhaustive
@pytest.mark.skipif(not Hosts.has_redis(), reason="needs redis-server, which keeps the state of a killed GCS")
def test_a_session_survives_a_restart_of_the_gcs() -> None:
    with Hosts(2, redis=True) as hosts, ring(hosts, [1, 2]):
        with session(hosts) as child:
            child.wait_for_line("1 deadlock 2 []", deadline_s=SNAPSHOT_S)
            first = probes(hosts)

            gcs = hosts.gcs()
            command, environment = gcs.cmdline(), gcs.environ()
            gcs.kill()
            gcs.wait(10)
            wait_until(
                lambda: results(child)[-1].startswith("error "),
                deadline_s=SNAPSHOT_S,
                what=lambda: f"an error without a GCS: {child}",
            )
            hosts.start_gcs(command, environment)
            wait_until(
                lambda: results(child)[-1].strip() == "deadlock 2 []",
                deadline_s=120,
                what=lambda: f"a snapshot with the new GCS: {child}",
            )
            assert probes(hosts) == first
        assert_nothing_left(hosts)
