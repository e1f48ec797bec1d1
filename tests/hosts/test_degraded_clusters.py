"""Degraded clusters: no free CPU, a worker that does not answer, hosts that are disconnected or die."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.ray_clusters import busy_workers
from tests.hosts import Hosts
from tests.hosts.command import check
from tests.hosts.rings import ring
from tests.processes import carrying, command_line, stopped, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]

TIMEOUT_S = 20.0
FAST_HEALTH_CHECKS = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "8",
}
"""With these Ray declares a host dead after some 12 s, later than a check ends; by default after half a minute."""
OVERHEAD_S = 20.0
"""Time of a check beyond its timeout, including its start and end, on a busy machine."""


def timed_check(hosts: Hosts, timeout_s: float = TIMEOUT_S) -> Json:
    """A check that must meet its timeout."""
    document = check(hosts, options=[f"--timeout={timeout_s:g}"])
    assert document["took_s"] < timeout_s + OVERHEAD_S
    return document


def confirmed_deadlocks(document: Json) -> list[Json]:
    return [finding for finding in document["findings"] if finding["kind"] == "deadlock" and finding["confirmed"]]


def failures_on(hosts: Hosts, host: int, document: Json) -> list[Json]:
    return [failure for failure in document["coverage"]["failures"] if failure["node_id"] == hosts.nodes[host]]


def test_a_clear_cluster_is_sampled_once(three_hosts: Hosts) -> None:
    document = check(three_hosts)

    assert (document["verdict"], document["incomplete"], document["exit_code"]) == ("idle", False, 0)
    assert len(document["timing"]["sample_s"]) == 1


@pytest.mark.exhaustive
def test_a_full_cluster_with_2000_queued_tasks_is_checked(three_hosts: Hosts) -> None:
    with ring(three_hosts, [1, 2, 3, 1, 2, 3], queued=2000):
        document = check(three_hosts)

    assert (document["verdict"], document["incomplete"], document["exit_code"]) == ("deadlock", False, 1)
    (deadlock,) = confirmed_deadlocks(document)
    waiting = [member["node_ip"] for member in deadlock["members"] if member["thread"]]
    assert sorted(waiting) == sorted(["10.77.0.1", "10.77.0.2", "10.77.0.3"] * 2)
    assert document["coverage"]["nodes"] == {"seen": 3, "total": 3}
    assert document["coverage"]["workers"]["seen"] == document["coverage"]["workers"]["total"] >= 7
    assert document["coverage"]["failures"] == []


@pytest.mark.exhaustive
def test_a_worker_that_does_not_answer_makes_a_check_inconclusive(three_hosts: Hosts) -> None:
    with three_hosts.run_example("slow_actor_queue", on=1):
        (clerk,) = wait_until(lambda: workers_in(three_hosts, "Clerk.stamp"), deadline_s=20, what=lambda: "a clerk")
        before = check(three_hosts)
        with stopped(clerk):
            meanwhile = check(three_hosts, options=("--timeout", "10"))
        after = check(three_hosts)

    assert [
        (document["verdict"], document["incomplete"], document["exit_code"]) for document in (before, meanwhile, after)
    ] == [
        ("running", False, 0),
        ("running", True, 4),
        ("running", False, 0),
    ]
    (failure,) = meanwhile["coverage"]["failures"]
    assert failure["stage"] == "core worker"
    assert "no answer within" in failure["reason"]
    workers = meanwhile["coverage"]["workers"]
    assert workers["seen"] == workers["total"] - 1


def workers_in(hosts: Hosts, method: str) -> list[psutil.Process]:
    return [one for one in busy_workers(hosts.tag) if command_line(one)[:1] == [f"ray::{method}"]]


@pytest.mark.exhaustive
def test_a_deadlock_among_the_others_is_found_while_a_host_is_cut_off(three_hosts: Hosts) -> None:
    with ring(three_hosts, [1, 2], idle=3):
        with cut_off(three_hosts, 3):
            meanwhile = timed_check(three_hosts)
        after = complete_check(three_hosts)

    assert (meanwhile["verdict"], meanwhile["exit_code"]) == ("deadlock", 1)
    assert confirmed_deadlocks(meanwhile)
    assert_unreachable(three_hosts, 3, meanwhile)
    assert (after["verdict"], after["exit_code"]) == ("deadlock", 1)


def test_no_deadlock_is_confirmed_whose_member_is_cut_off(three_hosts: Hosts) -> None:
    with ring(three_hosts, [2, 3]):
        with cut_off(three_hosts, 3):
            meanwhile = timed_check(three_hosts)
        after = complete_check(three_hosts)

    assert (meanwhile["incomplete"], meanwhile["exit_code"]) == (True, 4)
    assert not confirmed_deadlocks(meanwhile)
    assert_unreachable(three_hosts, 3, meanwhile)
    assert (after["verdict"], after["exit_code"]) == ("deadlock", 1)
    assert confirmed_deadlocks(after)


@contextmanager
def cut_off(hosts: Hosts, host: int) -> Iterator[None]:
    hosts.cut(host)
    try:
        yield
    finally:
        hosts.mend(host)


def assert_unreachable(hosts: Hosts, host: int, document: Json) -> None:
    """Check that the host's worker and node are reported as missing, with a reason."""
    coverage = document["coverage"]
    assert coverage["nodes"] == {"seen": 2, "total": 3}, coverage["failures"]
    assert coverage["workers"]["seen"] < coverage["workers"]["total"]
    failures = failures_on(hosts, host, document)
    assert failures == coverage["failures"]
    found = [(failure["stage"], failure["reason"]) for failure in failures]
    assert set(found) == {("node probe", "no connection: the host or its network is down")}


def complete_check(hosts: Hosts) -> Json:
    """The first check without failures: peers need some time to reconnect."""
    last: list[Json] = []

    def complete() -> bool:
        last[:] = [check(hosts)]
        return not last[0]["coverage"]["failures"]

    wait_until(complete, deadline_s=120, what=lambda: f"a complete check: {last}")
    return last[0]


@pytest.mark.parametrize("host", [1, 2])
@pytest.mark.exhaustive
def test_a_stopped_raylet_costs_at_most_the_timeout(three_hosts: Hosts, host: int) -> None:
    with ring(three_hosts, [2, 3]):
        with stopped(raylet_on(three_hosts, host)):
            meanwhile = timed_check(three_hosts, timeout_s=6.0)
        after = complete_check(three_hosts)

    assert (meanwhile["incomplete"], meanwhile["exit_code"]) == (True, 4)
    (failure,) = failures_on(three_hosts, 2, meanwhile)
    assert (
        "raylet is stopped" in failure["reason"]
        if host == 1
        else "the start of its probe timed out" in failure["reason"]
    )
    assert after["exit_code"] == 1


def raylet_on(hosts: Hosts, host: int) -> psutil.Process:
    lines = {process: command_line(process) for process in carrying(hosts.tag)}
    (found,) = [process for process, line in lines.items() if f"--node_id={hosts.nodes[host]}" in line]
    return found


@pytest.mark.exhaustive
def test_workers_of_a_dead_host_are_missing_until_ray_declares_it_dead() -> None:
    with Hosts(2, environment=FAST_HEALTH_CHECKS) as hosts, ring(hosts, [1, 2]):
        hosts.kill(2)
        at_once = timed_check(hosts)
        later = complete_check(hosts)

    assert (at_once["incomplete"], at_once["exit_code"]) == (True, 4)
    assert not confirmed_deadlocks(at_once)
    assert {failure["stage"] for failure in failures_on(hosts, 2, at_once)} == {"node probe", "core worker"}
    assert (later["verdict"], later["incomplete"], later["exit_code"]) == ("idle", False, 0)
    assert later["coverage"]["nodes"] == {"seen": 1, "total": 1}
