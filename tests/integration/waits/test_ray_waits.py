"""What is read from real processes is what the processes themselves say."""

import inspect
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from dstack.model import Snapshot, Thread, producer_task_id
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.pyspy.runner import PySpy, find_pyspy
from dstack.probes.node.stability import mark_off_cpu, marks_of, unchanged
from dstack.probes.node_access.raylet_symbols import thread_context_layout
from dstack.snapshot_file import load
from tests.clusters.dstack_command import check, dstack, settled_check
from tests.clusters.ray_clusters import Example, run_example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import command_line, wait_until, woken_all_the_time
from tests.sampling import Plain, sample, target

PROGRAM = PROGRAMS / "drivers/ray_waits.py"
IN_PYTHON = inspect.isfunction(ray.ObjectRefGenerator._next_sync)
GENERATOR = ("generator", None, None) if IN_PYTHON else ("ray.wait", 1, None)
"""Ray 2.46 and 2.49 take the next of a generator in Cython, of which no frame is seen."""
Waits = tuple[dict[str, list[str]], Snapshot, Snapshot]


@pytest.fixture(scope="module")
def program(shared: SharedCluster) -> Iterator[Example]:
    with shared.running(PROGRAM) as running:
        yield running


@pytest.fixture(scope="module")
def waits(program: Example, tmp_path_factory: pytest.TempPathFactory) -> Waits:
    """The refs the program says its threads wait for; a plain and a richer snapshot of it."""
    folder = tmp_path_factory.mktemp("snapshots")
    line = next(line for line in program.output().splitlines() if line.startswith("refs "))
    expected: dict[str, list[str]] = json.loads(line.removeprefix("refs "))
    where = ["--address", program.address]
    wait_until(
        lambda: len(calls(taken(where, folder / "plain.json", program.environment))) == len(expected),
        deadline_s=30,
        what=lambda: f"all of {set(expected)} waiting",
    )
    plain = load(folder / "plain.json")
    rich = taken([*where, "--native", "--locals"], folder / "rich.json.gz", program.environment)
    return expected, plain, rich


def taken(options: list[str], path: Path, environment: Any) -> Snapshot:
    result = dstack("snapshot", *options, "-o", str(path), "--force", environment=environment)
    assert result.returncode == 0, result.stderr
    return load(path)


def calls(snapshot: Snapshot) -> dict[str, Thread]:
    """The threads that wait, by name; an actor's main thread by its class."""
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
            lambda: calls(taken(where, file, program.environment)).keys() == expected.keys(),
            deadline_s=120,
            what=lambda: f"all of {set(expected)}, of which {set(calls(load(file)))} are read",
        )
    woken = load(file)

    assert {name: list(thread.call.refs) for name, thread in calls(woken).items() if thread.call} == expected
    assert all(thread.still for thread in calls(woken).values())


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_deadlock_of_two_periodically_waking_actors_is_found_or_inconclusive() -> None:
    with run_example("two_actors") as running:
        where = (running.address, running.environment)
        found = settled_check(*where, lambda told: told["verdict"] == "deadlock")
        pids = [member["pid"] for member in found["findings"][0]["members"] if member["pid"]]

        with woken_all_the_time(*pids):
            settled_check(*where, lambda told: told["exit_code"] == 1, deadline_s=60)
        with woken_all_the_time(*pids, every_s=0.0005):
            told = check(*where)

    assert told["exit_code"] in (1, 4), told


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

    assert owners.pop(put) in (driver, "")  # Ray 2.46 does not note it where it is put
    assert set(owners.values()) == {driver}


@pytest.mark.ray
def test_each_thread_has_the_task_that_it_runs(waits: Waits) -> None:
    expected, plain, _ = waits
    (call,) = expected["MainThread"]

    assert calls(plain)["Waiter"].task_id == producer_task_id(call)
    processes = [worker.process for worker in plain.samples[0].workers if worker.process]
    assert all(process.tasks_read for process in processes)


def test_a_library_without_task_symbols_is_no_error(tmp_path: Path) -> None:
    text = tmp_path / "_raylet.so"
    text.write_text("not a library")

    assert thread_context_layout(text) is None
    assert thread_context_layout(Path(sys.executable).resolve()) is None
    assert thread_context_layout(tmp_path / "nowhere.so") is None


@pytest.mark.ray
def test_timeouts_and_counts_are_read(waits: Waits) -> None:
    _, plain, _ = waits

    read = {
        name: (thread.call.kind, thread.call.num_returns, thread.call.timeout_s)
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


def child(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script])


@contextmanager
def running(script: str) -> Iterator[psutil.Process]:
    with child(script) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def began_at(pid: int, **options: Any) -> Plain:
    return sample(target(pid), **options)


def threads_of(result: Plain) -> list[Any]:
    return list(result["processes"]["w"]["threads"])


SLEEPER = "import time; time.sleep(1000)"
SPINNER = "import time\nwhile True: pass"


def in_its_program(process: psutil.Process) -> bool:
    """Whether it has begun with what it was given, after Python's own start."""
    return any(frame["file"] == "<string>" for frame in began_at(process.pid)["frames"])


def started(process: psutil.Process) -> psutil.Process:
    wait_until(lambda: in_its_program(process), deadline_s=20, what=lambda: "the child in its program")
    return process


def test_a_sleeping_thread_is_proven_stable_without_a_pause() -> None:
    with running(SLEEPER) as process:
        result = began_at(started(process).pid)

    assert [thread["still"] for thread in threads_of(result)] == [True]
    assert result["processes"]["w"]["paused_ms"] == 0


def test_a_running_thread_is_paused_on_request_and_not_called_stable() -> None:
    with running(SPINNER) as process:
        pid = started(process).pid

        def of_one_that_got_a_turn() -> Plain | None:
            result = began_at(pid, pause=True)
            return result if result["processes"]["w"]["paused_ms"] else None

        result = wait_until(of_one_that_got_a_turn, deadline_s=20, what=lambda: "a look that was not too short for it")
        state = process.status()

    assert [(one["still"], one["torn"], one["on_cpu"]) for one in threads_of(result)] == [(False, False, True)]
    assert state not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def test_a_running_thread_is_not_paused_by_default() -> None:
    with running(SPINNER) as process:
        result = began_at(started(process).pid)

    assert result["processes"]["w"]["paused_ms"] == 0
    assert result["failures"] == []


def test_a_stopped_process_is_read_where_it_stopped() -> None:
    with running(SPINNER) as process:
        started(process).send_signal(signal.SIGSTOP)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, deadline_s=20, what=lambda: "stopped")
        result = began_at(process.pid)
        state = process.status()

    assert [thread["still"] for thread in threads_of(result)] == [True]
    assert state == psutil.STATUS_STOPPED


def test_an_ended_process_is_a_failure_with_a_reason() -> None:
    with child("pass") as process:
        process.wait()

    result = began_at(process.pid)

    assert result["processes"] == {}
    assert [(failure["stage"], failure["reason"]) for failure in result["failures"]] == [
        ("process", "the process has ended")
    ]


def test_another_process_with_the_same_pid_is_not_the_worker() -> None:
    with (
        running("import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(1000)") as server,
        running("import time; time.sleep(1000)") as other,
    ):
        ports = wait_until(
            lambda: [c.laddr.port for c in server.net_connections("tcp")], deadline_s=20, what=lambda: "a port"
        )
        result = sample(target(other.pid, port=ports[0]))

    assert "another process" in result["failures"][0]["reason"]


def test_pyspy_runs_from_memory_if_the_node_has_none() -> None:
    path = find_pyspy()
    assert path is not None
    probe = NodeProbe()
    probe.equip(Path(path).read_bytes())

    with running(SLEEPER) as process:
        result = sample(target(started(process).pid), probe=probe, native=True)

    assert result["failures"] == []
    assert len(threads_of(result)) == 1
    assert result["processes"]["w"]["paused_ms"] > 0


def test_a_hanging_pyspy_is_killed_and_reported(tmp_path: Path) -> None:
    hanging = tmp_path / "py-spy"
    seconds = f"1000.{secrets.randbelow(10**9)}"
    hanging.write_text(f"#!/bin/sh\nexec sleep {seconds}\n")
    hanging.chmod(0o755)

    with running(SLEEPER) as process, pytest.raises(DumpFailed, match=r"timed out after 0\.3 s"):
        PySpy(str(hanging)).dump(process.pid, blocking=False, native=False, timeout_s=0.3)

    assert not [one for one in psutil.process_iter() if seconds in command_line(one)]


def test_marks_differ_for_a_thread_that_ran_and_are_stable_otherwise() -> None:
    asleep, ticking = threading.Event(), threading.Event()
    threads = [threading.Thread(target=asleep.wait), threading.Thread(target=tick, args=(ticking,))]
    for thread in threads:
        thread.start()
    time.sleep(0.1)

    before = marks_of(os.getpid())

    def the_same_after_a_tick() -> set[int] | None:
        same = unchanged(before, marks_of(os.getpid()))
        return None if threads[1].native_id in same else same

    same = wait_until(the_same_after_a_tick, deadline_s=20, what=lambda: "a tick")
    asleep.set()
    ticking.set()

    assert threads[0].native_id in same


def test_a_running_thread_is_never_stable() -> None:
    with running(SPINNER) as process:
        pid = started(process).pid
        wait_until(lambda: process.status() == psutil.STATUS_RUNNING, deadline_s=20, what=process.status)
        assert {mark_off_cpu(pid, pid) for _ in range(100)} == {""}


def test_a_sleeping_thread_is_stable_until_it_ends() -> None:
    with running(SLEEPER) as process:
        pid = started(process).pid
        wait_until(lambda: process.status() == psutil.STATUS_SLEEPING, deadline_s=20, what=process.status)
        assert mark_off_cpu(pid, pid) == mark_off_cpu(pid, pid) != ""

    assert mark_off_cpu(pid, pid) == ""


def tick(until: threading.Event) -> None:
    while not until.wait(0.001):
        pass


SLEEPS_AND_WAITS = """
import threading, time
threading.Thread(target=threading.Event().wait, name="waits", daemon=True).start()
threading.Thread(target=input, name="reads", daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""


def test_a_sleeping_thread_differs_from_a_blocked_one() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPS_AND_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"

        def asleep() -> set[str]:
            (process,) = sample(target(program.pid))["processes"].values()
            return {thread["name"] for thread in process["threads"] if thread["sleeps"]}

        wait_until(lambda: asleep() == {"MainThread"}, deadline_s=60, what=lambda: str(asleep()))
        program.kill()
