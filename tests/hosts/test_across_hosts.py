"""A deadlock across hosts is found from any host, without an installation on the others, and leaves no traces."""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGINT, SIGKILL, Signals

import pytest

from tests.clusters.dstack_command import Json
from tests.hosts import Hosts
from tests.hosts.command import PYTHONPATH, check, dstack, dstack_processes, files, running
from tests.hosts.rings import members_of, ring
from tests.paths import ROOT
from tests.processes import wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]

CLEANUP_S = 60.0
"""Deadline for the end of dstack's processes and files on all hosts."""
INTERRUPTED_S = 60.0
"""Deadline for the end of an interrupted command; the exit code shows that the signal ended it."""


@pytest.fixture(scope="module")
def deadlock(three_hosts: Hosts) -> Iterator[Hosts]:
    """Hosts with a driver on the first, and on the others two actors with the same pid that wait for each other."""
    for attempt in range(1, 6):
        for host in (2, 3):  # the next process there, the member, gets the next pid
            three_hosts.exec(host, ["sh", "-c", f"echo {attempt * 5000} >/proc/sys/kernel/ns_last_pid"])
        with ring(three_hosts, [2, 3]):
            if len(member_pids(three_hosts)) == 1:
                yield three_hosts
                return
    pytest.fail("the members never had the same pid")


def member_pids(hosts: Hosts) -> set[int]:
    """The members' pids on their hosts."""
    status = [Path(f"/proc/{member.pid}/status").read_text().splitlines() for member in members_of(hosts)]
    return {int(line.split()[-1]) for lines in status for line in lines if line.startswith("NSpid:")}


def assert_found_completely(hosts: Hosts, document: Json) -> None:
    assert (document["verdict"], document["incomplete"], document["exit_code"]) == ("deadlock", False, 1)
    (finding,) = document["findings"]
    assert finding["confirmed"]
    waiting = [member for member in finding["members"] if member["thread"]]
    assert sorted((member["node_id"], member["node_ip"]) for member in waiting) == sorted(
        [(hosts.nodes[2], "10.77.0.2"), (hosts.nodes[3], "10.77.0.3")]
    )
    assert {member["pid"] for member in waiting} == member_pids(hosts)
    assert {member["source"] for member in waiting} == {"ray.get(self.following.pass_token.remote())"}
    (behind,) = finding["blocked_behind"]
    assert (behind["node_id"], behind["execution"]) == (hosts.nodes[1], "driver ring.py")
    coverage = document["coverage"]
    assert coverage["nodes"] == {"seen": 3, "total": 3}
    assert coverage["workers"]["seen"] == coverage["workers"]["total"] >= 3
    assert coverage["failures"] == []


@pytest.fixture(autouse=True)
def nothing_left(deadlock: Hosts) -> Iterator[None]:
    """Fail if processes or files of dstack remain on a host after a test."""
    before = files(deadlock)
    yield
    wait_until(
        lambda: not dstack_processes(deadlock),
        deadline_s=CLEANUP_S,
        what=lambda: f"end of {dstack_processes(deadlock)}",
    )
    assert files(deadlock) == before


@pytest.mark.parametrize(("on", "address"), [(1, None), (3, "auto")])
def test_a_deadlock_is_found_from_any_host(deadlock: Hosts, on: int, address: str | None) -> None:
    document = check(deadlock, on, address=address)

    assert_found_completely(deadlock, document)
    assert len(document["timing"]["sample_s"]) == 2


def test_what_members_printed_is_read_on_their_hosts(deadlock: Hosts) -> None:
    result = dstack(deadlock, 1, "logs", "pass_token", "--address", deadlock.address)

    assert result.returncode == 0, result.stderr
    assert result.stdout.count("the token is passed on; password=***") == 2
    assert result.stdout.count("actor Member ") == 2


def test_the_history_has_no_tasks_of_probes(deadlock: Hosts) -> None:
    check(deadlock)
    result = dstack(deadlock, 1, "graph", "--format", "json")

    assert result.returncode == 0, result.stderr
    nodes = json.loads(result.stdout)["nodes"]
    assert nodes
    assert [node["name"] for node in nodes if "Probe" in node["name"]] == []


def test_nodes_need_no_installation(deadlock: Hosts) -> None:
    with without_installation(deadlock, 2), without_installation(deadlock, 3):
        document = check(deadlock)

    assert_found_completely(deadlock, document)


@contextmanager
def without_installation(hosts: Hosts, host: int) -> Iterator[None]:
    """Hide dstack and py-spy on one host with bind mounts."""
    with ExitStack() as stack:
        covers = f"/tmp/{secrets.token_hex(8)}"  # the host's /tmp may contain this repository
        made = f"mkdir -p {covers}/nothing && touch {covers}/empty && chmod 644 {covers}/empty"
        assert hosts.exec(host, ["sh", "-c", made]).returncode == 0
        stack.callback(hosts.exec, host, ["rm", "-r", covers])
        for path in (str(ROOT / "dstack"), *pyspys(hosts, host)):
            cover = f"{covers}/nothing" if os.path.isdir(path) else f"{covers}/empty"
            assert hosts.exec(host, ["mount", "--bind", cover, path]).returncode == 0
            stack.callback(hosts.exec, host, ["umount", path])
        imported = hosts.exec(host, [sys.executable, "-c", "import dstack.probes"], PYTHONPATH=PYTHONPATH)
        assert "ModuleNotFoundError" in imported.stderr
        assert not pyspys(hosts, host)
        yield


def pyspys(hosts: Hosts, host: int) -> list[str]:
    """Every py-spy on a host's PATH, which begins with the interpreter's directory."""
    return hosts.exec(host, ["which", "-a", "py-spy"]).stdout.split()


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("dstack.probes.node_access.remote_driver", SIGINT),
        ("ray::ProbeActor", SIGKILL),
        pytest.param("dstack.probes.node_access.remote_driver", SIGKILL, marks=pytest.mark.exhaustive),
        pytest.param("ray::ProbeActor", SIGINT, marks=pytest.mark.exhaustive),
    ],
)
def test_an_interrupted_command_leaves_no_actors_or_processes(deadlock: Hosts, number: Signals, stage: str) -> None:
    arguments = ["check", "--address", deadlock.address]
    with stopped_member(deadlock), running(deadlock, 1, *arguments) as (child, process):
        wait_until(
            lambda: any(stage in line for line in dstack_processes(deadlock)), deadline_s=20, what=lambda: f"a {stage}"
        )
        process.send_signal(number)
        code = child.process.wait(timeout=INTERRUPTED_S)
        output = child.log.read_text()

    assert (code, output) == ((130, "Interrupted.\n") if number == SIGINT else (-SIGKILL, ""))
    assert_found_completely(deadlock, check(deadlock))


@contextmanager
def stopped_member(hosts: Hosts) -> Iterator[None]:
    """Stop a member, so that a check waits for its answer."""
    member = members_of(hosts)[0]
    member.suspend()
    try:
        yield
    finally:
        member.resume()


@pytest.mark.exhaustive
def test_concurrent_commands_ignore_each_other(deadlock: Hosts) -> None:
    arguments = ["snapshot", "--address", deadlock.address, "-o", "-"]
    with ExitStack() as stack:
        children = [stack.enter_context(running(deadlock, on, *arguments))[0] for on in (1, 1, 3)]
        assert [child.process.wait(timeout=60) for child in children] == [0, 0, 0]
        snapshots = [json.loads(child.log.read_text()) for child in children]

    for snapshot in snapshots:
        (job,) = [job for job in snapshot["jobs"] if not job.get("is_dead")]
        assert "ring.py" in job["entrypoint"]
        assert {worker.get("job_id") for worker in snapshot["workers"]} <= {job["job_id"], None}
        assert not [frame for frame in snapshot["frames"] if Path(frame["file"]).is_relative_to(ROOT / "dstack")]
        assert snapshot["failures"] == []
