"""Waits for refs read from real processes are those that the processes themselves print."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from dstack.call_sites import kind_of
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot, producer_task_id
from dstack.observed.calls import Call, Refs
from dstack.observed.processes import Thread
from tests.clusters.dstack_command import check, dstack, settled_check
from tests.clusters.ray_clusters import Example, run_example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import wait_until, woken_all_the_time

PROGRAM = PROGRAMS / "drivers/ray_waits.py"
IN_PYTHON = inspect.isfunction(ray.ObjectRefGenerator._next_sync)
GENERATOR = ("generator", None, None) if IN_PYTHON else ("ray.wait", 1, None)
"""Ray 2.46 and 2.49 get the next item of a generator in Cython, which has no frame."""
Waits = tuple[dict[str, list[str]], Snapshot, Snapshot]


@pytest.fixture(scope="module")
def program(shared: SharedCluster) -> Iterator[Example]:
    with shared.running(PROGRAM) as running:
        yield running


@pytest.fixture(scope="module")
def waits(program: Example, tmp_path_factory: pytest.TempPathFactory) -> Waits:
    """The refs that the program prints for its threads; a snapshot, and one with native frames and locals."""
    folder = tmp_path_factory.mktemp("snapshots")
    line = next(line for line in program.output().splitlines() if line.startswith("refs "))
    expected: dict[str, list[str]] = json.loads(line.removeprefix("refs "))
    where = ["--address", program.address]
    wait_until(
        lambda: len(calls(snapshot_of(where, folder / "plain.json", program.environment))) == len(expected),
        deadline_s=30,
        what=lambda: f"all of {set(expected)} waiting",
    )
    plain = load(folder / "plain.json")
    rich = snapshot_of([*where, "--native", "--locals"], folder / "rich.json.gz", program.environment)
    return expected, plain, rich


def snapshot_of(options: list[str], path: Path, environment: Any) -> Snapshot:
    result = dstack("snapshot", *options, "-o", str(path), "--force", environment=environment)
    assert result.returncode == 0, result.stderr
    return load(path)


def calls(snapshot: Snapshot) -> dict[str, Thread]:
    """The waiting threads by name; an actor's main thread by its class."""
    found = {}
    actors = {actor.worker_id: actor.class_name for actor in snapshot.actors}
    for worker in snapshot.samples[0].workers:
        for thread in worker.process.threads if worker.process else ():
            if thread.call and thread.call.refs:
                found[actors.get(worker.worker_id, thread.name)] = thread
    return found


@pytest.mark.ray
def test_the_refs_read_from_memory_are_those_that_the_program_prints(waits: Waits) -> None:
    expected, plain, _ = waits

    read = {name: list(thread.call.refs) for name, thread in calls(plain).items() if thread.call}

    assert read == expected
    assert all(thread.still for thread in calls(plain).values())


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_process_that_wakes_more_often_than_pyspy_can_read_it_is_read(
    program: Example, waits: Waits, tmp_path: Path
) -> None:
    expected, _, _ = waits
    where, file = ["--address", program.address], tmp_path / "woken.json"

    with woken_all_the_time(program.pid):
        wait_until(
            lambda: calls(snapshot_of(where, file, program.environment)).keys() == expected.keys(),
            deadline_s=120,
            what=lambda: f"all of {set(expected)}, of which {set(calls(load(file)))} are read",
        )
    woken = load(file)

    assert {name: list(thread.call.refs) for name, thread in calls(woken).items() if thread.call} == expected
    assert all(thread.still for thread in calls(woken).values())


@pytest.mark.exhaustive
@pytest.mark.ray
def test_a_deadlock_of_two_periodically_waking_actors_is_found_or_inconclusive() -> None:
    with run_example("two_actors") as running:
        where = (running.address, running.environment)
        found = settled_check(*where, lambda document: document["verdict"] == "deadlock")
        pids = [member["pid"] for member in found["findings"][0]["members"] if member["pid"]]

        with woken_all_the_time(*pids):
            settled_check(*where, lambda document: document["exit_code"] == 1, deadline_s=60)
        with woken_all_the_time(*pids, every_s=0.0005):
            document = check(*where)

    assert document["exit_code"] in (1, 4), document


@pytest.mark.ray
def test_the_owner_of_every_ref_is_read(waits: Waits) -> None:
    expected, plain, _ = waits
    (driver,) = [worker.worker_id for worker in plain.workers if worker.is_driver]
    put = expected["get-list"][2]

    owners = {
        ref: owner
        for thread in calls(plain).values()
        if thread.call
        for ref, owner in zip(thread.call.refs, thread.call.owners, strict=True)
    }

    assert owners.pop(put) in (driver, "")  # Ray 2.46 does not record it for a put
    assert set(owners.values()) == {driver}


@pytest.mark.ray
def test_each_thread_has_the_task_that_it_runs(waits: Waits) -> None:
    expected, plain, _ = waits
    (call,) = expected["MainThread"]

    assert calls(plain)["Waiter"].task_id == producer_task_id(call)
    processes = [worker.process for worker in plain.samples[0].workers if worker.process]
    assert all(process.tasks_read for process in processes)


def count_of(call: Call) -> int | None:
    return call.need.count if isinstance(call.need, Refs) else None


@pytest.mark.ray
def test_timeouts_and_counts_are_read(waits: Waits) -> None:
    _, plain, _ = waits

    read = {
        name: (kind_of(thread.call), count_of(thread.call), thread.call.timeout_s)
        for name, thread in calls(plain).items()
        if thread.call
    }

    assert read == {
        "get-one": ("ray.get", None, None),
        "get-list": ("ray.get", None, None),
        "get-timeout": ("ray.get", None, 5000.5),
        "wait-2-of-3": ("ray.wait", 2, None),
        "wait-timeout": ("ray.wait", 1, 4000.0),
        "generator": GENERATOR,
        "wait-generators": ("ray.wait", 1, None),  # one of the two may have its next item already
        "MainThread": ("ray.get", None, None),
        "Waiter": ("ray.get", None, None),
    }


@pytest.mark.ray
def test_blocked_processes_are_read_without_a_pause(waits: Waits) -> None:
    _, plain, _ = waits

    assert {w.process.paused_ms for w in plain.samples[0].workers if w.process} == {0.0}


@pytest.mark.ray
def test_native_frames_and_locals_are_read_on_request_only(waits: Waits) -> None:
    expected, plain, rich = waits

    assert not any(thread.locals for thread in calls(plain).values())
    assert not any("_raylet" in frame.file for frame in plain.frames)
    assert any("_raylet" in frame.file for frame in rich.frames)
    assert {thread.call.refs for thread in calls(rich).values() if thread.call} == {
        tuple(refs) for refs in expected.values()
    }
    waiter = calls(rich)["Waiter"]
    assert waiter.locals
    assert any("refs" in values for values in waiter.locals.values())


@pytest.mark.ray
def test_source_lines_surround_user_frames(waits: Waits) -> None:
    _, plain, _ = waits
    lines = PROGRAM.read_text().splitlines()
    at = next(number for number, line in enumerate(lines, 1) if "ray.get(refs)" in line)

    assert {number: text for number, text in plain.sources[str(PROGRAM)].items() if abs(number - at) <= 2} == {
        number: lines[number - 1] for number in range(at - 2, at + 3) if number <= len(lines)
    }
