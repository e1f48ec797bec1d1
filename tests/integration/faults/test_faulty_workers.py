"""On a cluster with faulty workers a check ends in time, finds the deadlock, and has no side effects."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.observed.calls import Refs
from dstack.observed.processes import Process, Thread
from tests.clusters.dstack_command import DSTACK, Json, check, dstack, settled_check
from tests.clusters.ray_clusters import Example, run_example
from tests.integration.programs.drivers import faulty_actors
from tests.processes import carrying, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]  # test_faulty_processes has each fault, on plain processes

PROGRAM = Path(faulty_actors.__file__)
TIMEOUT_S = 40.0
GET_ONE = ("is_deep", "has_huge_locals")
WITHOUT_SPILLING = {"RAY_automatic_object_spilling_enabled": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Example]:
    with run_example(PROGRAM, variables=WITHOUT_SPILLING, deadline_s=120) as example:
        settled_check(example.address, example.environment, is_found, deadline_s=60)
        yield example


@pytest.fixture(scope="module")
def pids(cluster: Example) -> dict[str, int]:
    line = next(line for line in cluster.log.read_text().splitlines() if line.startswith("{"))
    document: dict[str, int] = json.loads(line)
    return document


@pytest.fixture(scope="module")
def snapshot(cluster: Example, pids: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A snapshot with locals, once every fault is present."""
    file = str(tmp_path_factory.mktemp("snapshots") / "snapshot.json.gz")
    where = ["--address", cluster.address, "-o", file, "--force", "--locals"]

    def settled() -> Snapshot | None:
        done = dstack("snapshot", *where, environment=cluster.environment)
        assert done.returncode == 0, done.stderr
        snapshot = load(file)
        return snapshot if all(main_thread(process_of(snapshot, pids[name])).call for name in GET_ONE) else None

    return wait_until(settled, deadline_s=120, what=lambda: "all in trouble")


def is_found(document: Json) -> bool:
    """Whether the only confirmed deadlock is that of the two actors that wait for each other."""
    deadlocks = [finding for finding in document["findings"] if finding["kind"] == "deadlock" and finding["confirmed"]]
    return [{one["actor_name"] for one in finding["members"]} for finding in deadlocks] == [{"left", "right"}]


def assert_found(document: Json) -> None:
    assert is_found(document), json.dumps([document["findings"], document["coverage"]], indent=1)


@contextlib.contextmanager
def leaves_all_as_it_was(cluster: Example, pids: dict[str, int]) -> Iterator[None]:
    """Check that no worker is left stopped, no process and no file remains, and the cluster does new work."""
    tag = ("RAY_TMPDIR", cluster.environment["RAY_TMPDIR"])
    stopped = {pid for pid in pids.values() if psutil.Process(pid).status() == psutil.STATUS_STOPPED}
    files = {*Path("/tmp").iterdir()}

    def new_files() -> list[str]:
        found = {*Path("/tmp").iterdir()} - files
        return [path.name for path in found if "dstack" in path.name or "py-spy" in path.name]

    yield
    wait_until(lambda: not remaining_processes(tag), deadline_s=20, what=lambda: f"end of {remaining_processes(tag)}")
    assert {pid for pid in pids.values() if psutil.Process(pid).status() == psutil.STATUS_STOPPED} == stopped
    # Another dstack on this machine may have its own files, but not for long.
    wait_until(lambda: not new_files(), deadline_s=20, what=lambda: f"removal of {new_files()}")
    ticks = cluster.log.read_text().count("tick")
    wait_until(lambda: cluster.log.read_text().count("tick") > ticks, deadline_s=30, what=lambda: "a tick")


def remaining_processes(tag: tuple[str, str]) -> list[str]:
    """The command lines of dstack's processes with the cluster's environment."""
    lines = []
    for process in carrying(tag):
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if "dstack" in line.split("tests")[0] or "py-spy" in line]


def process_of(snapshot: Snapshot, pid: int) -> Process:
    processes = (worker.process for worker in snapshot.samples[0].workers if worker.process)
    return next(process for process in processes if process.pid == pid)


def main_thread(process: Process) -> Thread:
    return next(thread for thread in process.threads if thread.os_thread_id == process.pid)


def check_until_found(cluster: Example) -> Json:
    """The first document with the deadlock; earlier ones, of a busy machine, have to be inconclusive."""
    last: list[Json] = []

    def finds_it() -> bool:
        last[:] = [check(cluster.address, cluster.environment, "--timeout", str(TIMEOUT_S))]
        assert is_found(last[0]) or last[0]["exit_code"] == 4, json.dumps(last[0]["findings"], indent=1)
        return is_found(last[0])

    wait_until(finds_it, deadline_s=90, what=lambda: f"found: {json.dumps(last[0]['coverage'], indent=1)}")
    return last[0]


def unanswering(document: Json) -> set[int]:
    """The processes without an answer of their core worker, which must be the only failures.

    On a busy machine healthy ones may time out, too.
    """
    failures = document["coverage"]["failures"]
    assert {failure["stage"] for failure in failures} <= {"core worker"}, failures
    assert all("stopped, overloaded" in failure["reason"] for failure in failures), failures
    return {failure["pid"] for failure in failures}


def test_all_faulty_workers_are_read_and_the_deadlock_is_found(cluster: Example, pids: dict[str, int]) -> None:
    with leaves_all_as_it_was(cluster, pids):
        document = check_until_found(cluster)

    assert_found(document)
    assert document["exit_code"] == 1
    assert document["timing"]["total_s"] < TIMEOUT_S
    assert pids["holds_gil_in_c"] in unanswering(document), document["coverage"]["failures"]
    assert document["coverage"]["workers"]["seen"] == document["coverage"]["workers"]["total"] - len(
        unanswering(document)
    )


@pytest.mark.parametrize("trouble", ["holds_gil_in_c", "loops_in_c", "is_deep", "has_huge_locals"])
def test_a_faulty_worker_is_read_in_its_faulty_function(trouble: str, snapshot: Snapshot, pids: dict[str, int]) -> None:
    thread = main_thread(process_of(snapshot, pids[trouble]))

    functions = [frame.function.rpartition(".")[2] for frame in snapshot.frames_of(thread)]
    assert trouble in functions
    assert thread.still or trouble == "loops_in_c"  # a busy machine may not have scheduled that one


def test_all_300_recursive_calls_are_read(snapshot: Snapshot, pids: dict[str, int]) -> None:
    thread = main_thread(process_of(snapshot, pids["is_deep"]))

    frames = snapshot.frames_of(thread)
    assert sum(frame.function.endswith("is_deep") for frame in frames) == faulty_actors.DEEP + 1
    assert thread.call is not None
    assert len(thread.call.refs) == 1


def test_all_of_100_000_refs_are_read_or_none(snapshot: Snapshot, pids: dict[str, int]) -> None:
    """Ray wakes the waiter every second, so a busy host may report an unread wait."""
    thread = main_thread(process_of(snapshot, pids["has_many_refs"]))

    assert "has_many_refs" in [frame.function.rpartition(".")[2] for frame in snapshot.frames_of(thread)]
    assert thread.call is not None
    assert isinstance(thread.call.need, Refs) == thread.still
    assert len({*thread.call.refs}) == (faulty_actors.MANY_REFS if thread.still else 0)


def test_all_of_200_threads_are_read(snapshot: Snapshot, pids: dict[str, int]) -> None:
    process = process_of(snapshot, pids["has_many_threads"])

    assert sum(thread.name.startswith("waits-") for thread in process.threads) == faulty_actors.MANY_THREADS


def test_huge_locals_are_shown_briefly(snapshot: Snapshot, pids: dict[str, int]) -> None:
    thread = main_thread(process_of(snapshot, pids["has_huge_locals"]))

    assert thread.locals is not None
    document = [text for values in thread.locals.values() for text in values.values()]
    assert {"data", "text", "items"} <= {name for values in thread.locals.values() for name in values}
    assert max(map(len, document)) < 1000


def test_a_worker_that_waits_for_room_in_the_object_store_is_read(snapshot: Snapshot, pids: dict[str, int]) -> None:
    thread = main_thread(process_of(snapshot, pids["fills_store"]))

    functions = [frame.function.rpartition(".")[2] for frame in snapshot.frames_of(thread)]
    assert "fills_store" in functions


def test_a_stopped_worker_does_not_keep_the_deadlock_from_being_found(cluster: Example, pids: dict[str, int]) -> None:
    pid = pids["sleeps"]
    os.kill(pid, signal.SIGSTOP)
    try:
        status = psutil.Process(pid).status
        wait_until(lambda: status() == psutil.STATUS_STOPPED, deadline_s=20, what=lambda: "stopped")
        with leaves_all_as_it_was(cluster, pids):
            document = check_until_found(cluster)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert_found(document)
    assert document["timing"]["total_s"] < TIMEOUT_S
    assert unanswering(document) >= {pid, pids["holds_gil_in_c"]}
    wait_until(lambda: pid not in unanswering(check_until_found(cluster)), deadline_s=60, what=lambda: "its answer")


def test_a_worker_killed_during_a_sample_is_no_failure(cluster: Example, pids: dict[str, int]) -> None:
    pid = pids["sleeps"]
    argv = [*DSTACK, "check", "--address", cluster.address, "--json"]

    with subprocess.Popen(argv, env=cluster.environment, stdout=subprocess.PIPE) as running:
        wait_until(lambda: psutil.Process(running.pid).children(), deadline_s=60, what=lambda: "its first py-spy")
        os.kill(pid, signal.SIGKILL)
        out, _ = running.communicate(timeout=60)
    document = json.loads(out)

    assert_found(document)
    assert {failure["pid"] for failure in document["coverage"]["failures"] if failure["stage"] != "core worker"} <= {
        pid
    }
    ticks = cluster.log.read_text().count("tick")
    wait_until(lambda: cluster.log.read_text().count("tick") > ticks, deadline_s=30, what=lambda: "a tick")
