"""A node in its own pid namespace, as in a container: dstack on the host has other pids than Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.clusters.dstack_command import Json, settled_check
from tests.clusters.ray_clusters import Example, run_example
from tests.processes import carrying, is_rays, wait_until

IN_A_NAMESPACE = (
    '#!/bin/sh\nexec setpriv --bounding-set=-sys_ptrace unshare --pid --fork --kill-child --mount-proc {python} "$@"\n'
)
HIDE_DRIVER = "import ctypes, os\nif os.getpid() == 1: ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE\n"
"""Without SYS_PTRACE nothing in the container can read a process that is not dumpable."""


@pytest.fixture(scope="module")
def contained(hosts_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """The two actors on a cluster with this host's network, but its own pid namespace, whose driver is unreadable."""
    folder = tmp_path_factory.mktemp("container")
    python = folder / "python"
    python.write_text(IN_A_NAMESPACE.format(python=sys.executable))
    python.chmod(0o755)
    (folder / "sitecustomize.py").write_text(HIDE_DRIVER)
    with run_example("two_actors", python=str(python), variables={"PYTHONPATH": str(folder)}) as example:
        yield example


def numbers(pid: int) -> list[int]:
    """The pids of a process in all its namespaces, that of the test first."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next([int(word) for word in line.split()[1:]] for line in lines if line.startswith("NSpid:"))


@pytest.mark.ray
@pytest.mark.hosts
def test_a_containers_processes_are_read_from_within(contained: Example) -> None:
    tag = ("RAY_TMPDIR", contained.environment["RAY_TMPDIR"])
    before = {process.pid for process in carrying(tag)}
    document = settled_check(
        contained.address, contained.environment, lambda document: document["verdict"] == "deadlock"
    )

    (finding,) = (one for one in document["findings"] if one["kind"] == "deadlock")
    inner = {numbers(process.pid)[-1] for process in carrying(tag) if is_rays(process)}
    assert finding["confirmed"]
    assert {member["pid"] for member in finding["members"]} <= inner
    assert document["coverage"]["workers"] == {"seen": 2, "total": 3}
    assert_driver_is_unread(document["coverage"]["failures"])
    wait_until(
        lambda: not [one for one in carrying(tag) if one.pid not in before and is_of_dstack(one)],
        deadline_s=20,
        what=lambda: "end of dstack's processes there",
    )
    assert not [one for one in carrying(tag) if one.status() == psutil.STATUS_STOPPED]
    assert os.path.exists(f"/proc/{contained.pid}")


def assert_driver_is_unread(failures: list[Json]) -> None:
    """The process that the probe in the container cannot read is a failure; the host's other pids are none."""
    unreadable = [one for one in failures if one["cause"] == "permission"]
    assert unreadable
    assert all("without the capability SYS_PTRACE" in one["reason"] for one in unreadable)
    assert {one["pid"] for one in failures} <= {1, None}
    assert {one["stage"] for one in failures} == {"stacks"}


def is_of_dstack(process: psutil.Process) -> bool:
    try:
        return "dstack" in " ".join(process.cmdline()) or process.name().startswith("ray::ProbeActor")
    except psutil.Error:
        return False
