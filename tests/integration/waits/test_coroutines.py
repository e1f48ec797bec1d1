"""Suspended coroutines read from outside are as the program itself prints them, also beside short-lived ones."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION
from dstack.probes.node_access.targets import foreign_python
from tests.fuzzing.effort import tries
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, sample, target, words_of
from tests.versions.interpreters import python_or_skip

OTHERS = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) != OWN_VERSION]


def sample_coroutines(pid: int) -> Plain:
    return sample(target(pid, python=foreign_python(pid)))


def printed_by(program: Child) -> Plain:
    values: Plain = program.printed_json()
    return values


@pytest.fixture(scope="module", params=["own", *OTHERS])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The program, run by the Python that runs the tests, and by every other supported version."""
    python = [sys.executable] if request.param == "own" else python_or_skip(request.param)
    log = tmp_path_factory.mktemp("coroutines") / "log"
    with running([*python, str(PROGRAMS / "processes/coroutines.py")], dict(os.environ), log) as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


@pytest.fixture(scope="module")
def printed(program: Child) -> Plain:
    return printed_by(program)


@pytest.fixture(scope="module")
def result(program: Child, printed: Plain) -> Plain:
    """The answer once all of its coroutines are suspended at the lines that they print."""

    def settled() -> Plain | None:
        result = sample_coroutines(program.pid)
        coroutines = {one["coroutine_id"] for one in result["processes"]["w"]["coroutines"] if one["still"]}
        return result if coroutines >= {one["id"] for one in printed["coroutines"].values()} else None

    return wait_until(settled, deadline_s=30, what=lambda: "all of its coroutines waiting")


@pytest.fixture(scope="module")
def coroutines(result: Plain, printed: Plain) -> Plain:
    """Its coroutines by their printed names."""
    names = {one["id"]: name for name, one in printed["coroutines"].items()}
    found = result["processes"]["w"]["coroutines"]
    return {names[one["coroutine_id"]]: one for one in found if one["coroutine_id"] in names}


def test_each_task_is_found_once_under_its_name(result: Plain, coroutines: Plain, printed: Plain) -> None:
    assert result["failures"] == []
    assert coroutines.keys() == printed["coroutines"].keys()
    assert [name for name, one in coroutines.items() if one["name"] != name] == []
    assert all(one["task_id"] is None and not one["is_task"] for one in coroutines.values())


def test_each_task_has_the_line_that_it_prints(result: Plain, coroutines: Plain, printed: Plain) -> None:
    def place(name: str) -> tuple[str, int]:
        frames = [result["frames"][index] for index in result["stacks"][coroutines[name]["stack"]]]
        leaf = next(frame for frame in frames if frame["file"].endswith("processes/coroutines.py"))
        return leaf["function"].rpartition(".")[2], leaf["line"]

    expected = {name: (one["function"], one["line"]) for name, one in printed["coroutines"].items()}

    assert {name: place(name) for name in coroutines} == expected


def test_each_task_has_the_event_loop_that_it_prints(coroutines: Plain, printed: Plain) -> None:
    expected = {name: printed["threads"][one["thread"]] for name, one in printed["coroutines"].items()}

    assert {name: one["os_thread_id"] for name, one in coroutines.items()} == expected


def test_each_task_has_the_dependency_that_it_prints(coroutines: Plain, printed: Plain) -> None:
    words = Words(printed)

    read = {
        name: words.read(words_of(one["call"]) or None, printed["coroutines"][name]) for name, one in coroutines.items()
    }

    assert read == {name: words.expected(name, one) for name, one in printed["coroutines"].items()}


def test_threads_wait_for_the_coroutines_that_the_program_prints(result: Plain, printed: Plain) -> None:
    words = Words(printed)
    threads = {one["name"]: one for one in result["processes"]["w"]["threads"]}

    for name, expected in printed["calls"].items():
        call = words_of(threads[name]["call"])
        assert (call["kind"], call["what"]) == (expected["kind"], expected["what"])
        assert words.names(call.get("coroutines", [])) == expected["coroutines"]
        assert call.get("threads", []) == [printed["threads"][thread] for thread in expected.get("threads", [])]


def test_a_thread_in_run_until_complete_waits_for_its_coroutine(result: Plain, printed: Plain) -> None:
    (call,) = (words_of(one["call"]) for one in result["processes"]["w"]["threads"] if one["name"] == "runs")

    assert call["kind"] == "await"
    assert call["coroutines"] == [printed["coroutines"]["asyncio-run"]["id"]]


class Words:
    """Calls as read and as printed, in one format."""

    def __init__(self, printed: Plain) -> None:
        self._ids = {one["id"]: name for name, one in printed["coroutines"].items()}
        self._threads = printed["threads"]
        cancel = ("asyncio.wait_for", None)  # a timeout of these waits also cancels what they wait for
        timed = [one for one in printed["coroutines"].values() if "timeout_s" in one and one.get("what") in cancel]
        self._cancelled = {name for one in timed for name in one.get("coroutines", ())}

    def names(self, coroutines: list[str]) -> list[str]:
        return sorted(self._ids.get(one, one) for one in coroutines)

    def read(self, call: Plain | None, printed: Plain) -> Plain | None:
        if call is None:
            return None
        assert call.get("unread") is None
        threads = {one for several in call.get("all_of", ()) for one in several}
        timeout_s = call["timeout_s"]
        wait = {
            "coroutines": self.names(call.get("coroutines", [])),
            "threads": sorted(threads),
            "num_returns": call.get("num_returns"),
            "others": call.get("others") or int(call["kind"] != "await" and not call.get("coroutines")),
            "is_timed": timeout_s is not None,
        }
        named: Plain = {key: call.get(key) for key in ("what", "object_id") if key in printed}
        return {**wait, **named}

    def expected(self, name: str, printed: Plain) -> Plain | None:
        if printed.get("what") == "asyncio.sleep":
            return None
        wait = {
            "coroutines": sorted(printed.get("coroutines", [])),
            "threads": sorted(self._threads[name] for name in printed.get("threads", [])),
            "num_returns": printed.get("num_returns"),
            "others": printed.get("others", 0),
            "is_timed": "timeout_s" in printed or name in self._cancelled,
        }
        return {**wait, **{key: printed[key] for key in ("what", "object_id") if key in printed}}


# Beside short-lived tasks

READS = tries(200)


@pytest.fixture
def churn(tmp_path: Path) -> Iterator[Child]:
    with running([sys.executable, str(PROGRAMS / "processes/churn.py")], dict(os.environ), tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


def test_stuck_tasks_are_read_correctly_beside_short_lived_tasks(churn: Child) -> None:
    printed = printed_by(churn)
    names = {one["id"]: name for name, one in printed.items()}
    moved = 0

    for _ in range(READS):
        result = sample_coroutines(churn.pid)
        process = result["processes"]["w"]
        found = {names[one["coroutine_id"]]: one for one in process["coroutines"] if one["coroutine_id"] in names}
        assert found.keys() == printed.keys()
        for name, one in found.items():
            leaf = next(
                frame
                for frame in (result["frames"][index] for index in result["stacks"][one["stack"]])
                if frame["file"].endswith("churn.py")
            )
            assert one["still"]
            assert (leaf["line"], leaf["function"].rpartition(".")[2]) == (
                printed[name]["line"],
                printed[name]["function"],
            )
            assert (
                sorted(names[other] for other in words_of(one["call"]).get("coroutines", ()))
                == printed[name]["coroutines"]
            )
        moved += sum(one["name"] == "passing" and not one["still"] for one in process["coroutines"])
    assert moved, "nothing came and went"


# Processes that end or stop meanwhile


def test_a_stopped_process_is_read_and_left_stopped(churn: Child) -> None:
    os.kill(churn.pid, signal.SIGSTOP)
    process = psutil.Process(churn.pid)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, deadline_s=20, what=process.status)
    printed = printed_by(churn)

    result = sample_coroutines(churn.pid)

    found = {one["coroutine_id"] for one in result["processes"]["w"]["coroutines"] if one["still"]}
    assert found >= {one["id"] for one in printed.values()}
    assert result["processes"]["w"]["state"] == "stopped"


def test_an_ended_process_is_a_failure(churn: Child) -> None:
    os.kill(churn.pid, signal.SIGKILL)
    churn.process.wait()

    result = sample_coroutines(churn.pid)

    assert [(failure["stage"], failure["reason"]) for failure in result["failures"]] == [
        ("process", "the process has ended")
    ]
