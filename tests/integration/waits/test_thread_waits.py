"""Waits of threads within a process, read from outside, are as the program itself prints them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from dstack.observed.calls import Timer
from dstack.probes.node import process_reader
from dstack.probes.node.cpython import python_process
from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION, CPythonLayout
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.wire import ForeignPython, UnreadablePython
from dstack.probes.node_access.targets import foreign_python
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, functions, sample, target, words_of
from tests.versions.interpreters import python_or_skip

PROGRAM = PROGRAMS / "processes/thread_waits.py"
OTHERS = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) != OWN_VERSION]


@pytest.fixture(scope="module", params=["own", *OTHERS])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The program, run by the Python that runs the tests, and by every other supported version."""
    python = [sys.executable] if request.param == "own" else python_or_skip(request.param)
    log = tmp_path_factory.mktemp("threads") / "log"
    with running([*python, str(PROGRAM)], {}, log) as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


@pytest.fixture(scope="module")
def printed(program: Child) -> Plain:
    """The JSON that the program prints about its threads."""
    values: Plain = program.printed_json()
    return values


@pytest.fixture(scope="module")
def read_threads(program: Child, printed: Plain) -> Plain:
    """The threads by name, once all waiters wait."""

    def settled() -> Plain | None:
        threads = threads_by_name(sample_own(program.pid), printed)
        waiting = [name for name, call in printed["calls"].items() if call]
        return threads if all(threads.get(name, {}).get("still") for name in waiting) else None

    return wait_until(settled, deadline_s=60, what=lambda: "all of its threads waiting")


def sample_own(pid: int) -> Plain:
    return sample_with(pid, foreign_python(pid))


def sample_with(pid: int, python: ForeignPython | UnreadablePython | None) -> Plain:
    return sample(target(pid, python=python))


def threads_by_name(result: Plain, printed: Plain) -> Plain:
    names = {os_thread_id: name for name, os_thread_id in printed["threads"].items()}
    threads = result["processes"]["w"]["threads"]
    return {names[thread["os_thread_id"]]: thread for thread in threads if thread["os_thread_id"] in names}


def in_printed_format(call: Plain, printed: Plain) -> Plain:
    """A call in the program's format."""
    names = {os_thread_id: name for name, os_thread_id in printed["threads"].items()}
    words: Plain = {"kind": call["kind"], "what": call.get("what"), "timeout_s": call.get("timeout_s")}
    words["threads"] = sorted(names[one] for one in call.get("threads", ()))
    words["all_of"] = sorted(sorted(names[one] for one in some) for some in call.get("all_of", ()))
    return {**words, "inferred": bool(call.get("inferred")), "unread": call.get("unread")}


def expected(call: Plain) -> Plain:
    words = {"what": None, "timeout_s": None, "threads": [], "all_of": [], "inferred": False, "unread": None, **call}
    return {**words, "threads": sorted(words["threads"]), "all_of": sorted(words["all_of"])}


def test_every_thread_has_the_dependency_that_the_program_prints(read_threads: Plain, printed: Plain) -> None:
    read = {
        name: in_printed_format(words_of(thread["call"]), printed)
        for name, thread in read_threads.items()
        if thread["call"]
    }

    assert read == {name: expected(call) for name, call in printed["calls"].items() if call}


def test_sleeping_computing_and_idle_threads_do_not_wait(read_threads: Plain, printed: Plain) -> None:
    free = {name for name, call in printed["calls"].items() if call is None}

    assert {"sleeps", "computes", "holder", "idle_0"} <= free
    assert not [name for name in free if read_threads.get(name, {}).get("call")]


def test_timers_and_schedulers_show_what_they_will_stop(read_threads: Plain) -> None:
    timers = {name: thread["timer"] for name, thread in read_threads.items() if thread.get("timer")}

    assert timers == {
        "timer": Timer(name="module._exit", left_s=9000.0, stops=True, ends_process=True),
        "scheduler": Timer(name="cancel_all", stops=True),
    }


def test_threads_that_wait_for_the_same_object_have_its_id(read_threads: Plain) -> None:
    of_lock = {
        words_of(read_threads[name]["call"])["object_id"] for name in ("lock-with", "lock-acquire", "lock-timeout")
    }
    of_rlock = {words_of(read_threads[name]["call"])["object_id"] for name in ("rlock", "rlock-timeout")}
    of_queues = [
        words_of(read_threads[name]["call"])["object_id"] for name in ("queue-get", "queue-timeout", "queue-put")
    ]

    assert len(of_lock) == len(of_rlock) == 1
    assert len({*of_lock, *of_rlock, *of_queues}) == 5


def test_the_frame_of_a_wait_is_its_caller(program: Child, read_threads: Plain, printed: Plain) -> None:
    result = sample_own(program.pid)
    threads = threads_by_name(result, printed)

    def function(name: str) -> str:
        thread = threads[name]
        frame = result["frames"][result["stacks"][thread["stack"]][thread["call"].frame]]
        return str(frame["function"]).rpartition(".")[2]

    assert {name: function(name) for name in ("queue-get", "event", "running", "as-completed")} == {
        "queue-get": "get",
        "event": "wait",
        "running": "result",
        "as-completed": "as_completed",
    }


def test_an_unknown_layout_is_a_reason_and_stacks_are_read(
    program: Child, read_threads: Plain, printed: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> CPythonLayout:
        raise UnreadableMemory("memory of this Python is not known")

    monkeypatch.setattr(python_process, "own_layout", fail)
    monkeypatch.setattr(process_reader, "stated_python", lambda pid: None)

    result = sample_with(program.pid, None)
    threads = threads_by_name(result, printed)

    (failure,) = result["failures"]
    assert failure["stage"] == "memory"
    assert failure["reason"].endswith("memory of this Python is not known")
    assert result["processes"]["w"]["access"] == "py-spy"
    assert_read_without_calls(result, threads, read_threads)


def test_an_unreadable_python_is_one_failure_and_stacks_are_read(
    program: Child, read_threads: Plain, printed: Plain
) -> None:
    result = sample_with(program.pid, {"unreadable": "it runs Python 3.15, which dstack cannot read"})
    threads = threads_by_name(result, printed)

    (failure,) = result["failures"]
    assert failure["stage"] == "memory"
    assert failure["reason"] == "its memory could not be read: it runs Python 3.15, which dstack cannot read"
    assert_read_without_calls(result, threads, read_threads)


def assert_read_without_calls(result: Plain, threads: Plain, read_threads: Plain) -> None:
    """All threads have their stacks, and none has a wait."""
    assert threads.keys() == read_threads.keys()
    assert functions(result, threads["event"])[:2] == ["wait", "wait"]
    assert not [name for name, thread in threads.items() if thread["call"]]


def test_a_program_other_than_python_is_rejected() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        result = sample_own(process.pid)
        process.kill()

    assert [failure["stage"] for failure in result["failures"]] == ["stacks"]
