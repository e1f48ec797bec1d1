"""Child processes of workers and drivers are read with them, and waits for a child have its pid."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dstack.call_sites import name_of
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.probes.node.cpython.debug_offsets import FIRST_VERSION
from dstack.probes.node.cpython.layouts import LAYOUTS
from dstack.probes.node.probe import MAX_CHILDREN, NodeProbe
from tests.clusters.dstack_command import check, dstack
from tests.clusters.ray_clusters import run_example
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import OPTIONS, Plain, functions, sample, target, words_of
from tests.versions.interpreters import python_or_skip

JOIN, RECV = "multiprocessing.Process.join", "multiprocessing.Connection.recv"


@contextmanager
def family(way: str, folder: Path) -> Iterator[tuple[Child, list[int]]]:
    """The program that starts processes in this way, and the pids that it prints."""
    command = [sys.executable, str(PROGRAMS / "processes/child_processes.py"), way]
    with running(command, dict(os.environ), folder / way) as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child, child.printed_json()


def sample_with_children(pid: int, **options: Any) -> Plain:
    return sample(target(pid), children=True, **options)


def settled(pid: int, what: str) -> tuple[Plain, Plain]:
    """The answer once the main thread of a process is in this call, and that call."""

    def found() -> tuple[Plain, Plain] | None:
        result = sample_with_children(pid)
        calls = (words_of(one["call"]) for one in result["processes"]["w"]["threads"] if one["os_thread_id"] == pid)
        call = next(calls, None)
        return (result, call) if call and call["what"] == what else None

    return wait_until(found, deadline_s=20, what=lambda: f"{what}: {sample_with_children(pid)}")


def test_children_of_an_unrelated_process_with_the_workers_pid_are_ignored(tmp_path: Path) -> None:
    """As if a driver is pid 1 in its container, and pid 1 of this host has children."""
    tried = tmp_path / "tried"
    probe = NodeProbe()
    probe.equip(f'#!/bin/sh\necho "$@" >>{tried}\n'.encode())
    with family("joins_fork", tmp_path) as (stranger, pids), socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = sample(target(stranger.pid, port=port), probe=probe, children=True)

    assert pids
    assert not tried.exists()
    assert result["processes"] == {}
    (failure,) = result["failures"]
    assert f"pid {stranger.pid} is another process here" in failure["reason"]


@pytest.mark.parametrize(
    ("way", "call", "function", "is_proven"),
    [
        ("joins_fork", JOIN, "sleeps", True),
        ("joins_spawn", JOIN, "sleeps", True),
        ("joins_forkserver", JOIN, "sleeps", False),
        ("receives", RECV, "gives", False),
        ("receives_from_socket", RECV, "gives", False),
        ("gets_from_pool", "multiprocessing.Pool result", "worker", True),
        ("gets_from_pool_of_threads", "multiprocessing.Pool result", "sleeps", False),
    ],
)
def test_a_child_is_read_with_its_stack_and_a_certain_wait_has_its_pid(
    way: str, call: str, function: str, is_proven: bool, tmp_path: Path
) -> None:
    with family(way, tmp_path) as (parent, pids):
        result, waits = settled(parent.pid, call)
        states = {pid: psutil.Process(pid).status() for pid in pids}

    assert result["failures"] == []
    children = result["processes"]["w"]["children"]
    assert [child["pid"] for child in children] == pids
    assert {pid for child in children for pid in [child["parent_pid"]] if way != "joins_forkserver"} <= {parent.pid}
    assert any(function in functions(result, thread) for child in children for thread in child["threads"])
    assert waits.get("child_pids", []) == (pids if is_proven else [])
    assert all(thread["task_id"] is None for child in children for thread in child["threads"])
    assert set(states.values()) == {psutil.STATUS_SLEEPING}


def test_a_child_of_a_shell_is_read_and_the_wait_is_for_the_shell(tmp_path: Path) -> None:
    with family("runs_command", tmp_path) as (parent, pids):
        result, waits = settled(parent.pid, "os.waitpid")

    process = result["processes"]["w"]
    shell, child = process["children"]
    assert shell["access"] == "kernel", "it runs no Python"
    assert [child["pid"]] == pids
    assert waits["child_pids"] == [shell["pid"]] == [child["parent_pid"]]
    assert process["children_left_out"] == 0


def test_what_is_received_has_the_process_at_the_other_end(tmp_path: Path) -> None:
    with family("receives", tmp_path) as (parent, pids):
        (end,) = settled(parent.pid, RECV)[1]["ends"]

    assert end["what"] == "pipe"
    assert [holder["pid"] for holder in end["holders"]] == pids


def test_a_fork_has_the_coroutines_of_its_own_event_loop(tmp_path: Path) -> None:
    with family("awaits_in_fork", tmp_path) as (parent, (pid,)):
        result, _ = settled(parent.pid, "asyncio event loop")

    process = result["processes"]["w"]
    (child,) = process["children"]
    assert sorted(one["name"] for one in process["coroutines"]) == ["Task-1", "of parent"]
    (coroutine,) = child["coroutines"]
    assert words_of(coroutine["call"])["what"] == "asyncio.Event.wait"
    assert coroutine["coroutine_id"].endswith(f"/{pid}")
    main = words_of(child["threads"][0]["call"])
    assert main["coroutines"] == [coroutine["coroutine_id"]]


STATING = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) >= FIRST_VERSION]
OTHER_PYTHON = """
import asyncio, threading
def waits(name, numbers):
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=lock.acquire, name="locked", daemon=True).start()
    asyncio.run(asyncio.Event().wait())
waits("of child", [1, 2])
"""


@pytest.mark.parametrize("version", STATING)
def test_a_child_under_a_python_that_states_its_offsets_is_read_from_memory(version: str, tmp_path: Path) -> None:
    """The probe of a node finds out by itself which Python that is."""
    parent = "import subprocess, sys; subprocess.call(sys.argv[1:])"
    command = [sys.executable, "-c", parent, *python_or_skip(version), "-c", OTHER_PYTHON]

    def waiting() -> Plain | None:
        found = sample_with_children(started.pid, locals=True)
        calls = [words_of(one["call"]).get("what") for one in found["processes"]["w"]["children"][0]["threads"]]
        return found if sorted(map(str, calls)) == ["asyncio event loop", "threading.Lock.acquire"] else None

    with running(command, {}, tmp_path / "log") as started:
        wait_until(lambda: psutil.Process(started.pid).children(), deadline_s=30, what=lambda: "a child")
        found = wait_until(waiting, deadline_s=30, what=lambda: str(sample_with_children(started.pid)))

    (child,) = found["processes"]["w"]["children"]
    assert (child["access"], found["failures"]) == ("memory", [])
    assert [words_of(one["call"])["what"] for one in child["coroutines"]] == ["asyncio.Event.wait"]
    main = next(one for one in child["threads"] if one["os_thread_id"] == child["pid"])
    assert {"name": '"of child"', "numbers": "[1, 2]"}.items() <= main["locals"][
        str(functions(found, main).index("waits"))
    ].items()


def test_only_the_first_of_too_many_children_are_read_with_a_note(tmp_path: Path) -> None:
    with family("has_many", tmp_path) as (parent, pids):
        result, _ = settled(parent.pid, JOIN)

    process = result["processes"]["w"]
    assert [child["pid"] for child in process["children"]] == pids[:MAX_CHILDREN]
    assert process["children_left_out"] == len(pids) - MAX_CHILDREN
    reasons = [failure["reason"] for failure in result["failures"] if failure["pid"] == parent.pid]
    assert reasons == ["it has too many child processes: 4 of 20 were not read"], result["failures"]


def test_another_target_or_what_it_started_is_not_shown_as_a_child(tmp_path: Path) -> None:
    with family("joins_fork", tmp_path) as (parent, (pid,)):
        result = sample(target(parent.pid, "parent"), target(pid, "child"), children=True)

    assert [process["children"] for process in result["processes"].values()] == [[], []]


def test_dstack_and_its_processes_are_not_shown_as_children(tmp_path: Path) -> None:
    script = f"""
import os
from dstack.probes.node.probe import NodeProbe
probe = NodeProbe()
target = {{"worker_id": "w", "pid": os.getppid(), "port": 0, "is_driver": True}}
print(len(probe.sample([target], {OPTIONS | {"children": True}}).processes["w"].children))
"""
    parent = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    done = subprocess.run([sys.executable, "-c", parent, script], capture_output=True, text=True, check=True)

    assert done.stdout == "0\n"


# Below a worker and a driver


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Snapshot, Plain, str, Plain]]:
    """A snapshot of the program, its document, its report, and the pids that it prints."""
    file = tmp_path_factory.mktemp("snapshots") / "snapshot.json"
    with run_example(PROGRAMS / "drivers/engine.py") as example:
        printed = json.loads(next(x for x in example.output().splitlines() if x.startswith("{")))

        def both_waiting() -> Snapshot | None:
            where = ["--address", example.address, "-o", str(file), "--force"]
            done = dstack("snapshot", *where, environment=example.environment)
            assert done.returncode == 0, done.stderr
            recorded = load(file)
            processes = [worker.process for worker in recorded.samples[0].workers if worker.process]
            calls = [name_of(call) for process in processes for call in process.calls()]
            return recorded if {JOIN, RECV} <= {*calls} else None

        snapshot = wait_until(both_waiting, deadline_s=60, what=lambda: "both waiting")
        document = check(example.address, example.environment)
        report = dstack("show", str(file), "--details").stdout
        yield snapshot, document, report, printed


@pytest.mark.ray
def test_workers_and_drivers_have_their_children_but_no_processes_of_ray(on_ray: tuple[Any, ...]) -> None:
    snapshot, _, _, printed = on_ray

    found = {
        worker.process.pid: [child.pid for child in worker.process.children]
        for worker in snapshot.samples[0].workers
        if worker.process and worker.process.children
    }
    assert found == {printed["driver"]: [printed["helper"]], printed["worker"]: [printed["engine"]]}
    processes = (worker.process for worker in snapshot.samples[0].workers if worker.process)
    cut_off = {child.pid: child.is_cut_off for process in processes for child in process.children}
    assert cut_off == {printed["helper"]: False, printed["engine"]: True}, "the helper was spawned, the engine forked"
    assert snapshot.failures == ()


@pytest.mark.ray
def test_a_chain_ends_in_the_child_with_its_position(on_ray: tuple[Any, ...]) -> None:
    _, document, _, printed = on_ray

    (finding,) = document["findings"]
    (blocker,) = finding["final_blockers"]
    assert (document["verdict"], finding["kind"], document["exit_code"]) == ("running", "running", 0)
    assert blocker["execution"] == f"child process (pid {printed['engine']})"
    assert (blocker["pid"], blocker["function"], blocker["actor_class"]) == (printed["engine"], "serve", "Server")
    assert any(f"child process (pid {printed['engine']})" in text for text in finding["explanation"])
    assert {child["pid"] for child in document["child_processes"]} == {printed["engine"], printed["helper"]}


@pytest.mark.ray
def test_the_report_shows_the_child_under_its_worker(on_ray: tuple[Any, ...]) -> None:
    _, _, report, printed = on_ray

    _, _, below = report.partition("Child processes")
    assert f'actor Server "server"  pid {printed["worker"]}' in below
    assert f"pid {printed['engine']}" in below
    assert "serve" in below
