"""Every way to await on real Ray: ids, lines and tasks read from outside are those that the program itself prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dstack.call_sites import kind_of, name_of
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.observed.calls import Awaitables, Call, Executions, Unreadable
from dstack.observed.processes import Coroutine, Frame, Process
from tests.clusters.dstack_command import dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = pytest.mark.ray

PROGRAM = PROGRAMS / "drivers/awaits.py"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def printed_and_snapshot(
    shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Json, Snapshot]]:
    """The JSON that the program prints, and a snapshot with all its coroutines."""
    file = tmp_path_factory.mktemp("awaits") / "snapshot.json"
    with shared.running(PROGRAM) as running:
        line = next(line for line in running.log.read_text().splitlines() if line.startswith("expected "))
        printed: Json = json.loads(line.removeprefix("expected "))
        ids = {one["id"] for process_name in ("waiter", "driver") for one in printed[process_name].values()}

        def settled() -> Snapshot | None:
            options = ("--address", running.address, "-o", str(file), "--force")
            result = dstack("snapshot", *options, environment=running.environment)
            assert result.returncode == 0, result.stderr
            snapshot = load(file)
            coroutines = {
                one.coroutine_id for process in processes(snapshot) for one in process.coroutines if one.still
            }
            return snapshot if ids <= coroutines else None

        yield printed, wait_until(settled, deadline_s=60, what=lambda: "all of its coroutines waiting")


def processes(snapshot: Snapshot) -> list[Process]:
    return [worker.process for worker in snapshot.samples[0].workers if worker.process]


class ReadProcess:
    """The printed JSON of one of the program's processes, and the coroutines read from it."""

    def __init__(self, printed: Json, snapshot: Snapshot) -> None:
        self.printed = printed
        self.snapshot = snapshot
        self.names = {one["id"]: name for name, one in printed.items()}
        (self.process,) = (
            process
            for process in processes(snapshot)
            if self.names.keys() <= {one.coroutine_id for one in process.coroutines}
        )
        self.coroutines: dict[str, Coroutine] = {
            self.names[one.coroutine_id]: one for one in self.process.coroutines if one.coroutine_id in self.names
        }

    def frame_of(self, name: str) -> Frame:
        return next(
            frame for frame in self.snapshot.frames_of(self.coroutines[name]) if frame.file.endswith("awaits.py")
        )

    def read_wait(self, name: str) -> Json:
        call = self.coroutines[name].call
        if call is None:
            return {}
        assert not isinstance(call.need, Unreadable)
        expected = self.printed[name]
        wait = {
            "refs": sorted(call.refs),
            "coroutines": sorted(self.names.get(one, one) for one in call.coroutines),
            "threads": sorted(call.threads),
            "num_returns": call.need.count if isinstance(call.need, Awaitables) else None,
            "others": others(call),
            "is_timed": call.timeout_s is not None,
        }
        return {**wait, **({"what": name_of(call)} if "what" in expected else {})}

    def expected_wait(self, name: str) -> Json:
        one = self.printed[name]
        if one.get("what") == "asyncio.sleep":
            return {}
        wait = {
            "refs": sorted(one["refs"]),
            "coroutines": sorted(one.get("coroutines", [])),
            "threads": sorted(one.get("threads", [])),
            "num_returns": one.get("num_returns"),
            "others": one.get("others", 0),
            "is_timed": "timeout_s" in one,
        }
        return {**wait, **({"what": one["what"]} if "what" in one else {})}


def others(call: Call) -> int:
    """The waker of a call that is known by its name alone is unknown, so it counts as one other."""
    return call.need.others if isinstance(call.need, Awaitables) else int(kind_of(call) != "lock")


@pytest.fixture(scope="module", params=["waiter", "driver"])
def read(request: pytest.FixtureRequest, printed_and_snapshot: tuple[Json, Snapshot]) -> ReadProcess:
    printed, snapshot = printed_and_snapshot
    return ReadProcess(printed[request.param], snapshot)


def test_each_coroutine_has_the_line_that_the_program_prints(read: ReadProcess) -> None:
    positions = {
        name: (frame.line, frame.function.rpartition(".")[2])
        for name in read.coroutines
        for frame in [read.frame_of(name)]
    }

    assert positions == {name: (one["line"], one["function"]) for name, one in read.printed.items()}


def test_each_coroutine_has_the_dependency_that_the_program_prints(read: ReadProcess) -> None:
    assert {name: read.read_wait(name) for name in read.printed} == {
        name: read.expected_wait(name) for name in read.printed
    }


def test_each_coroutine_has_the_event_loop_that_the_program_prints(read: ReadProcess) -> None:
    assert {name: one.os_thread_id for name, one in read.coroutines.items()} == {
        name: one["thread"] for name, one in read.printed.items()
    }


def test_each_coroutine_has_the_ray_task_that_the_program_prints(printed_and_snapshot: tuple[Json, Snapshot]) -> None:
    printed, snapshot = printed_and_snapshot
    waiter, driver = ReadProcess(printed["waiter"], snapshot), ReadProcess(printed["driver"], snapshot)

    assert {name: one.task_id for name, one in waiter.coroutines.items()} == {
        name: one["task_id"] for name, one in waiter.printed.items()
    }
    assert {name for name, one in waiter.coroutines.items() if not one.is_task} == {
        name for name in waiter.printed if "-" in name
    }
    assert all(one.task_id is None and not one.is_task for one in driver.coroutines.values())


def test_a_blocked_loop_shows_the_task_that_occupies_it_and_no_waits_of_others(
    printed_and_snapshot: tuple[Json, Snapshot],
) -> None:
    printed, snapshot = printed_and_snapshot
    process = ReadProcess(printed["waiter"], snapshot).process
    (worker,) = (worker for worker in snapshot.samples[0].workers if worker.process is process)

    blocked = {one.task_id: one.os_thread_id for one in process.threads if one.role == "loop" and one.task_id}

    assert blocked == printed["running"]
    assert set(printed["behind"]) <= set(worker.running_task_ids or ())
    assert set(printed["behind"]).isdisjoint(one.task_id for one in process.coroutines)


def test_a_thread_lock_is_held_by_the_coroutine_that_awaits_in_its_with_block(
    printed_and_snapshot: tuple[Json, Snapshot],
) -> None:
    printed, snapshot = printed_and_snapshot
    process = ReadProcess(printed["waiter"], snapshot).process

    (call,) = (one.call for one in process.threads if one.call and kind_of(one.call) == "lock")

    assert call.coroutines == (printed["waiter"]["has_thread_lock"]["id"],)
    assert isinstance(call.need, Executions)
    assert call.need.inferred


def test_threads_wait_for_the_coroutines_that_they_run_or_submit(printed_and_snapshot: tuple[Json, Snapshot]) -> None:
    printed, snapshot = printed_and_snapshot
    threads = {one.name: one.call for one in ReadProcess(printed["driver"], snapshot).process.threads}
    runs, asks = threads["asyncio-run"], threads["asks"]

    assert runs
    assert (kind_of(runs), runs.coroutines) == ("await", (printed["driver"]["asyncio-run"]["id"],))
    assert asks
    assert (kind_of(asks), asks.coroutines) == ("future", (printed["driver"]["asked"]["id"],))
