"""Faults during a check: of hosts, links, the GCS, dstack itself. A check reports what is missing, and cleans up."""

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import psutil
import pytest

from tests.clusters.dstack_command import Json, elapsed_s
from tests.clusters.ray_clusters import no_worker_left
from tests.fuzzing.effort import tries
from tests.hosts import Hosts
from tests.hosts.command import check, dstack, dstack_processes, files, running
from tests.hosts.rings import members_of, ring
from tests.processes import Child, carrying, command_line, stopped, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]

TIMEOUT_S = 20.0
LATE_S = 10.0
"""Delay of a check beyond its timeout on a busy machine."""
START_AND_END_S = 30.0
"""Additional time for the command's start and end."""
CLEANUP_S = 60.0
"""Deadline for the end of dstack's processes and files on all hosts."""
RECONNECTED_S = 120.0
"""Deadline for hosts to reconnect."""
CLIENT = Path(__file__).with_name("drivers") / "client.py"


@pytest.fixture(scope="module")
def deadlock(three_hosts: Hosts) -> Iterator[Hosts]:
    """Hosts with a deadlock between the second and the third, and its driver on the third."""
    with ring(three_hosts, [2, 3], driver=3):
        yield three_hosts


@pytest.fixture(scope="module")
def doomed(hosts_possible: None) -> Iterator[Hosts]:
    """The same on separate hosts, which tests may destroy."""
    with Hosts(3) as hosts, ring(hosts, [2, 3], driver=3):
        yield hosts


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if processes or files of dstack, or stopped processes, remain on a host after a test."""
    hosts: Hosts = request.getfixturevalue("doomed" if "doomed" in request.fixturenames else "deadlock")
    before = files(hosts)
    yield
    wait_until(
        lambda: not dstack_processes(hosts), deadline_s=CLEANUP_S, what=lambda: f"end of {dstack_processes(hosts)}"
    )
    assert files(hosts) == {host: before[host] for host in hosts.nodes}
    assert stopped_ones(hosts) == []


def stopped_ones(hosts: Hosts) -> list[list[str]]:
    return [command_line(one) for one in carrying(hosts.tag) if one.status() in ("stopped", "tracing-stop")]


def only(hosts: Hosts, is_wanted: Callable[[list[str]], bool]) -> psutil.Process:
    """The only process of the cluster with such a command line."""
    (found,) = [process for process in carrying(hosts.tag) if is_wanted(command_line(process))]
    return found


def raylet(hosts: Hosts, host: int) -> psutil.Process:
    return only(hosts, lambda line: f"--node_id={hosts.nodes[host]}" in line)


def check_with_fault(hosts: Hosts, act: Callable[[], object]) -> Json:
    """The document of a check that meets its timeout although ``act`` is called once a probe is on another host.

    A member is stopped, so that the check waits for its answer.
    """
    arguments = ["check", "--address", hosts.address, "--json", f"--timeout={TIMEOUT_S:g}"]
    with stopped(members_of(hosts)[0], may_end=True), running(hosts, 1, *arguments) as (child, _):
        wait_until(lambda: has_probes(hosts, child), deadline_s=20, what=lambda: "a probe elsewhere")
        act()
        code = child.process.wait(timeout=TIMEOUT_S + START_AND_END_S)
        document: Json = json.loads(child.log.read_text())
    assert document["timing"]["total_s"] < TIMEOUT_S + LATE_S
    assert (document["incomplete"], code) == (True, 4)
    assert not [finding for finding in document["findings"] if finding["confirmed"]]
    return document


def has_probes(hosts: Hosts, child: Child) -> bool:
    assert child.process.poll() is None, child
    return any("ray::ProbeActor" in line for line in dstack_processes(hosts))


def reasons(document: Json, stage: str) -> set[str]:
    return {failure["reason"] for failure in document["coverage"]["failures"] if failure["stage"] == stage}


def assert_recovers(hosts: Hosts) -> None:
    """Check that a complete check finds the deadlock again: peers need some time to reconnect."""
    last: list[Json] = []

    def is_complete() -> bool:
        last[:] = [check(hosts)]
        return not last[0]["coverage"]["failures"]

    wait_until(is_complete, deadline_s=RECONNECTED_S, what=lambda: f"a complete check: {last}")
    (finding,) = last[0]["findings"]
    assert (finding["kind"], finding["confirmed"], last[0]["exit_code"]) == ("deadlock", True, 1)
    assert [behind["node_ip"] for behind in finding["blocked_behind"]] == ["10.77.0.3"]


@pytest.mark.exhaustive
def test_a_dashboard_that_does_not_answer_is_not_needed(deadlock: Hosts) -> None:
    """Ray starts a process of that name even without a dashboard; it does not listen then."""
    dashboard = only(deadlock, lambda line: any("dashboard/dashboard.py" in word for word in line))
    with stopped(dashboard, may_end=True):
        assert_recovers(deadlock)


@pytest.mark.exhaustive
def test_a_link_cut_during_a_check_is_reported(deadlock: Hosts) -> None:
    try:
        document = check_with_fault(deadlock, lambda: deadlock.cut(3))
    finally:
        deadlock.mend(3)

    failures = [failure for failure in document["coverage"]["failures"] if failure["node_id"] == deadlock.nodes[3]]
    assert failures
    wait_until(
        lambda: not dstack_processes(deadlock),
        deadline_s=RECONNECTED_S,
        what=lambda: f"end of {dstack_processes(deadlock)}",
    )
    assert_recovers(deadlock)


@pytest.mark.exhaustive
def test_a_gcs_stopped_during_a_check_is_reported(deadlock: Hosts) -> None:
    server = deadlock.gcs()
    try:
        document = check_with_fault(deadlock, server.suspend)
    finally:
        server.resume()

    (reason,) = {reason for reason in reasons(document, "control plane") if "nodes" in reason}
    assert "no answer within" in reason
    assert document["coverage"]["workers"]["total"] >= 3
    assert_recovers(deadlock)


@pytest.mark.exhaustive
def test_a_gcs_stopped_before_a_check_is_reported(deadlock: Hosts) -> None:
    with stopped(deadlock.gcs(), may_end=True):
        began = time.monotonic()
        done = dstack(deadlock, 1, "check", "--address", deadlock.address)
        took_s = time.monotonic() - began

    assert took_s < START_AND_END_S
    assert (done.returncode, done.stdout) == (3, "")
    assert "its GCS did not answer within 2 s" in done.stderr
    assert_recovers(deadlock)


@pytest.mark.parametrize("timeout_s", [0.01, 0.3, 0.8, 1.5])
@pytest.mark.exhaustive
def test_a_timeout_gives_a_partial_report(deadlock: Hosts, timeout_s: float) -> None:
    arguments = ["check", "--address", deadlock.address, "--json", f"--timeout={timeout_s}"]
    done, took_s = elapsed_s(lambda: dstack(deadlock, 1, *arguments))

    assert took_s < timeout_s + START_AND_END_S
    assert "Traceback" not in done.stderr
    if done.returncode == 3:
        assert "no answer within" in done.stderr
    else:
        assert json.loads(done.stdout)["timing"]["total_s"] < timeout_s + LATE_S
        assert done.returncode in (1, 4)


@pytest.mark.exhaustive
def test_a_command_interrupted_at_any_time_ends_cleanly(deadlock: Hosts) -> None:
    """A snapshot is interrupted at times of its measured duration; its file is complete or absent."""
    path = f"/tmp/{secrets.token_hex(4)}.json"
    arguments = ["snapshot", "--address", deadlock.address, "-o", path, "--force"]
    _, whole_s = elapsed_s(lambda: dstack(deadlock, 1, *arguments))
    deadlock.exec(1, ["rm", path])
    numbers = [SIGINT, SIGTERM, SIGKILL] * tries(20)
    codes = set()
    for part, number in enumerate(numbers, 1):
        with running(deadlock, 1, *arguments) as (child, process):
            time.sleep(whole_s * part / (len(numbers) + 1))
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
            codes.add(child.process.wait(timeout=CLEANUP_S))
            assert "Traceback" not in child.log.read_text()
    is_there = deadlock.exec(1, ["ls", path]).returncode == 0
    judged = dstack(deadlock, 1, "check", path).returncode
    deadlock.exec(1, ["rm", "-f", path])

    assert -SIGKILL in codes
    assert codes <= {0, -SIGKILL, 128 + SIGINT, 128 + SIGTERM, -SIGINT, -SIGTERM}  # the last two during its end
    assert judged == (1 if is_there else 3)


@pytest.mark.exhaustive
def test_a_command_is_killed_while_its_driver_joins_through_a_stopped_raylet(deadlock: Hosts) -> None:
    with (
        stopped(raylet(deadlock, 1), may_end=True),
        running(deadlock, 1, "check", "--address", deadlock.address) as (child, process),
    ):
        driver = wait_until(lambda: joining(deadlock), deadline_s=20, what=lambda: "a driver that joins")
        process.kill()
        child.process.wait(timeout=CLEANUP_S)
        wait_until(lambda: not driver.is_running(), deadline_s=CLEANUP_S, what=lambda: f"end of {driver}")


def joining(hosts: Hosts) -> psutil.Process | None:
    """dstack's driver, once it has threads of Ray."""
    for process in carrying(hosts.tag):
        if any("dstack.probes.node_access.remote_driver" in word for word in command_line(process)):
            return process if process.num_threads() > 4 else None
    return None


@pytest.mark.exhaustive
def test_a_watch_and_concurrent_checks_ignore_each_other(deadlock: Hosts) -> None:
    options = ["--every=0.2", "--stuck-after=0.5", "--share=10000", "--dir=/tmp/home/watch", "--json"]
    with running(deadlock, 2, "watch", "--address", deadlock.address, *options) as (child, process):
        wait_until(lambda: events(child, "looking"), deadline_s=40, what=lambda: f"a snapshot: {child}")
        for on in (1, 3):
            document = check(deadlock, on)
            assert (document["exit_code"], document["coverage"]["failures"]) == (1, [])
            assert len(document["findings"]) == 1
        wait_until(lambda: events(child, "finding"), deadline_s=40, what=lambda: f"a finding: {child}")
        process.send_signal(SIGTERM)
        assert child.process.wait(timeout=CLEANUP_S) == 0
        (finding,) = events(child, "finding")
    deadlock.exec(2, ["rm", "-r", "/tmp/home/watch"])

    assert finding["finding"]["kind"] == "deadlock"


def events(child: Child, name: str) -> list[Json]:
    lines = [json.loads(line) for line in child.log.read_text().splitlines() if line.endswith("}")]
    return [event for event in lines if event["event"] == name]


@pytest.mark.exhaustive
def test_a_deadlock_made_by_a_ray_client_is_found(deadlock: Hosts) -> None:
    argv = [sys.executable, str(CLIENT), "ray://10.77.0.1:10001"]
    with no_worker_left(deadlock.tag), deadlock.start(2, argv, RAY_AUTH_MODE="token") as child:
        child.wait_for_line("ready", deadline_s=60)
        wait_until(lambda: len(members_of(deadlock)) == 4, deadline_s=20, what=lambda: "two more waiting members")
        document = wait_until(lambda: two_deadlocks(deadlock), deadline_s=60, what=lambda: "two deadlocks, one polled")
        report = dstack(deadlock, 1, "snapshot", "--address", deadlock.address).stdout

    assert document["exit_code"] == 1
    assert "uses Ray Client: its driver here is a proxy" in " ".join(report.split())


def two_deadlocks(hosts: Hosts) -> Json | None:
    """The document, once it has two deadlocks, one of them polled by a thread of the client's driver."""
    document = check(hosts)
    found = [finding for finding in document["findings"] if finding["kind"] == "deadlock" and finding["confirmed"]]
    polling = {one["execution"] for finding in found for one in finding["polled_by"]}
    is_polled = any(one.startswith("thread") and one.endswith("of driver of a Ray Client") for one in polling)
    return document if len(found) == 2 and is_polled else None


@pytest.mark.exhaustive
def test_a_host_that_dies_during_a_check_is_reported(doomed: Hosts) -> None:
    """The cluster has no third host afterwards."""
    dead = doomed.nodes.pop(3)
    document = check_with_fault(doomed, lambda: doomed.kill(3))

    assert [failure for failure in document["coverage"]["failures"] if failure["node_id"] == dead]


@pytest.mark.exhaustive
def test_a_gcs_killed_during_a_check_is_reported_and_its_successor_knows_no_cluster(doomed: Hosts) -> None:
    """The cluster has ended afterwards."""
    with ring(doomed, [2, 2]):
        server = doomed.gcs()
        command = server.cmdline()
        document = check_with_fault(doomed, server.kill)
    without_gcs = dstack(doomed, 1, "check", "--address", doomed.address)
    with doomed.start(1, command, RAY_AUTH_MODE="token"):
        new = wait_until(lambda: answered(doomed), deadline_s=20, what=lambda: "an answer of the new GCS")

    assert any("GCS" in reason for reason in reasons(document, "control plane"))
    assert (without_gcs.returncode, without_gcs.stdout) == (3, "")
    assert "refused" in without_gcs.stderr
    assert (new["verdict"], new["incomplete"], new["coverage"]["nodes"]["total"]) == ("unknown", True, 0)
    assert "no node has joined the cluster yet" in str(reasons(new, "control plane"))


def answered(hosts: Hosts) -> Json | None:
    done = dstack(hosts, 1, "check", "--address", hosts.address, "--json")
    return json.loads(done.stdout) if done.stdout else None
