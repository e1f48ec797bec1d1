"""A real cluster that dstack may not read: findings with the stacks of Ray's agent, and without stacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clusters.dstack_command import DSTACK, Json
from tests.clusters.ray_clusters import RayCluster, ray_cluster
from tests.paths import PROGRAMS
from tests.processes import running, wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop permissions"),
]
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace")
SETTLED_S = 40.0


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """A cluster for one test: the GCS keeps the address of an agent that has ended."""
    with ray_cluster(1, num_cpus=2) as cluster:
        yield cluster


@contextmanager
def agent(cluster: RayCluster, node_id: str) -> Iterator[None]:
    """Ray's agent as in a complete installation of Ray; it finds py-spy on the PATH."""
    command = [sys.executable, str(PROGRAMS / "tools/reporter_agent.py"), cluster.address, node_id]
    path = os.pathsep.join([str(Path(sys.executable).parent), cluster.environment["PATH"]])
    with running(command, {**cluster.environment, "PATH": path}, cluster.directory / "agent.log") as child:
        child.wait_for_line("serving", deadline_s=SETTLED_S)
        yield


def check(cluster: RayCluster, *options: str) -> Json:
    """The document of a ``dstack check`` that may not read any process."""
    command = [*WITHOUT_PTRACE, *DSTACK, "check", "--address", cluster.address, "--json", *options]
    done = subprocess.run(
        command,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.stdout, done.stderr
    document: Json = json.loads(done.stdout)
    return {**document, "exit_code": done.returncode}


def settled(cluster: RayCluster, verdict: str, access: str, *options: str) -> Json:
    """The first check with this verdict in which all processes were read with this ``access``.

    A deadlock is one that both samples show: Ray wakes a waiting thread now and then, and py-spy may see it running.
    """
    last: list[Json] = []

    def is_right() -> Json | None:
        last[:] = [check(cluster, *options)]
        checked = last[0]
        if checked["verdict"] != verdict or set(checked["coverage"]["access"]) != {access}:
            return None
        deadlocks = [one for one in checked["findings"] if one["kind"] == "deadlock"]
        return checked if all(one["confirmed"] or one["assumed"] for one in deadlocks) else None

    return wait_until(is_right, deadline_s=SETTLED_S, what=lambda: json.dumps(last, indent=1)[-6000:])


def test_a_deadlock_is_found_with_the_certainty_that_the_permissions_allow(cluster: RayCluster) -> None:
    with cluster.run_example("two_actors"):
        checked = settled(cluster, "unknown", "state only", "--pause")

        assert (checked["incomplete"], checked["exit_code"]) == (True, 4)
        kinds = {failure["reason"]: failure["remedy"] for failure in checked["coverage"]["failures"]}
        assert any("SYS_PTRACE" in reason and "--cap-add" in (remedy or "") for reason, remedy in kinds.items())
        assert any("no Ray agent" in reason for reason in kinds)
        waits = {one["execution"]: one["waits_for"] for finding in checked["findings"] for one in finding["members"]}
        for waiter, target in (("Cashier.order", "Kitchen.cook"), ("Kitchen.cook", "Cashier.is_paid")):
            assert {"inferred"} == {wait["evidence"] for wait in waits[waiter]}
            assert target in {one["execution"] for wait in waits[waiter] for one in wait["targets"]}

        node_id = checked["coverage"]["failures"][0]["node_id"]
        with agent(cluster, node_id):
            checked = settled(cluster, "unknown", "state only")

            assert checked["timing"]["pause_ms"] in (None, {"median": 0, "max": 0})
            remedies = [one["remedy"] or "" for one in checked["coverage"]["failures"] if one["stage"] == "stacks"]
            assert remedies
            assert all("--cap-add" in remedy and "Or use --pause: Ray's agent" in remedy for remedy in remedies)

            checked = settled(cluster, "deadlock", "text stack", "--pause")

            (finding,) = checked["findings"]
            assert not finding["confirmed"]
            assert finding["assumed"] == [f"two_actors.py:{line} is the code that it runs" for line in (22, 34)]
            assert {one["execution"] for one in finding["blocked_behind"]} == {"driver two_actors.py"}
            assert {one["access"] for one in finding["members"] if one["thread"]} == {"text stack"}
            assert checked["timing"]["pause_ms"]["max"] > 0  # the agent's py-spy stops its targets


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["polling_ring", "ring_with_second_thread"])
def test_a_look_alike_is_no_deadlock_without_permissions(cluster: RayCluster, name: str) -> None:
    with cluster.run_example(f"look_alikes/{name}"):
        node_id = check(cluster)["coverage"]["failures"][0]["node_id"]
        with agent(cluster, node_id):
            checked = settled(cluster, "running", "text stack", "--pause")

    assert checked["incomplete"]
