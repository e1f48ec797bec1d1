"""A recording across hosts, from probes on their nodes, which leaves no traces."""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGINT

import pytest

from tests.hosts import Hosts
from tests.hosts.command import dstack, dstack_processes, files, running
from tests.hosts.rings import ring
from tests.processes import reads_memory, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]

CLEANUP_S = 60.0
ENDED_S = 60.0


@pytest.fixture(scope="module")
def members(three_hosts: Hosts) -> Iterator[Hosts]:
    """Hosts with a driver on the first, and actors on the others."""
    with ring(three_hosts, [2, 3]):
        yield three_hosts


@pytest.fixture(autouse=True)
def nothing_left(members: Hosts) -> Iterator[None]:
    """Fail if processes or files of dstack remain on a host after a test."""
    before = files(members)
    yield
    wait_until(
        lambda: not dstack_processes(members),
        deadline_s=CLEANUP_S,
        what=lambda: f"end of {dstack_processes(members)}",
    )
    assert files(members) == before


@pytest.mark.parametrize("options", [[], pytest.param(["--native"], marks=pytest.mark.exhaustive)])
def test_all_hosts_are_recorded(members: Hosts, options: list[str]) -> None:
    done = dstack(members, 1, "record", "--address", members.address, "--idle", "--duration", "4", "-o", "-", *options)

    assert done.returncode == 0, done.stderr
    stacks = {tuple(line.split(";")[:2]) for line in done.stdout.splitlines()}
    assert {("node 10.77.0.2", "actor Member"), ("node 10.77.0.3", "actor Member")} <= stacks, done.stderr
    assert ("node 10.77.0.1", "driver ring.py") in stacks
    assert "pass_token" in done.stdout
    assert "not recorded" not in done.stderr, done.stderr


@pytest.mark.exhaustive
def test_ctrl_c_ends_the_recording_of_all_hosts(members: Hosts) -> None:
    arguments = ["record", "--address", members.address, "--idle", "--duration", "600", "-o", "-"]
    with running(members, 1, *arguments) as (child, process):
        wait_until(
            lambda: reads_memory(process.pid), deadline_s=60, what=lambda: f"a recording: {child.log.read_text()}"
        )
        process.send_signal(SIGINT)
        child.process.wait(timeout=ENDED_S)
        output = child.log.read_text()

    assert child.process.returncode == 0, output
    assert "driver ring.py" in output
    assert "actor Member" in output


@pytest.mark.exhaustive
def test_a_host_that_is_cut_off_delays_no_other_and_is_named(members: Hosts) -> None:
    arguments = ["record", "--address", members.address, "--idle", "--duration", "15", "-o", "-"]
    with running(members, 1, *arguments) as (child, process):
        try:
            wait_until(
                lambda: reads_memory(process.pid), deadline_s=60, what=lambda: f"a recording: {child.log.read_text()}"
            )
            members.cut(3)
            child.process.wait(timeout=ENDED_S)
        finally:
            members.mend(3)
        output = child.log.read_text()

    assert child.process.returncode == 0, output
    assert "node 10.77.0.2;actor Member" in output
    assert "1 process or node not recorded, or not completely" in output
