"""Every way to await on real Ray: ids, lines and tasks read from outside are what the program itself prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dstack.model import BlockedCall, Coroutine, Frame, Process, Snapshot
from dstack.snapshot_file import load
from tests.clusters.dstack_command import dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = pytest.mark.ray

PROGRAM = PROGRAMS / "drivers/awaits.py"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def told_and_seen(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Json, Snapshot]]:
    """What the program says, and a snapshot in which all that it tells of was seen."""
    file = tmp_path_factory.mktemp("awaits") / "snapshot.json"
    with shared.running(PROGRAM) as running:
        line = next(line for line in running.log.read_text().splitlines() if line.startswith("expected "))
        said: Json = json.loads(line.removeprefix("expected "))
        ids = {one["id"] for whose in ("waiter", "driver") for one in said[whose].values()}

        def settled() -> Snapshot | None:
            options = ("--address", running.address, "-o", str(file), "--force")
            result = dstack("snapshot", *options, environment=running.environment)
            assert result.returncode == 0, result.stderr
            snapshot = load(file)
            seen = {one.coroutine_id for process in processes(snapshot) for one in process.coroutines if one.still}
            return snapshot if ids <= seen else None

        yield said, wait_until(settled, deadline_s=60, what=lambda: "all of its coroutines seen")


def processes(snapshot: Snapshot) -> list[Process]:
    return [worker.process for worker in snapshot.samples[0].workers if worker.process]


class Whose:
    """What the program says of one of its processes, and the coroutines that were seen there."""

    def __init__(self, said: Json, snapshot: Snapshot) -> None:
        self.said = said
        self.snapshot = snapshot
        self.names = {one["id"]: name for name, one in said.items()}
        (self.process,) = (
            process
            for process in processes(snapshot)
            if self.names.keys() <= {one.coroutine_id for one in process.coroutines}
        )
        self.seen: dict[str, Coroutine] = {
            self.names[one.coroutine_id]: one for one in self.process.coroutines if one.coroutine_id in self.names
        }

    def place(self, name: str) -> Frame:
        return next(frame for frame in self.snapshot.frames_of(self.seen[name]) if frame.file.endswith("awaits.py"))

    def waits_for(self, name: str) -> Json:
        call = self.seen[name].call
        if call is None:
            return {}
        assert call.unread is None
        expected = self.said[name]
        told = {
            "refs": sorted(call.refs),
            "coroutines": sorted(self.names.get(one, one) for one in call.coroutines),
            "threads": sorted(thread for threads in call.all_of for thread in threads),
            "num_returns": call.num_returns,
            "others": others(call),
            "is_timed": call.timeout_s is not None,
        }
        return {**told, **({"what": call.what} if "what" in expected else {})}

    def says(self, name: str) -> Json:
        one = self.said[name]
        if one.get("what") == "asyncio.sleep":
            return {}
        told = {
            "refs": sorted(one["refs"]),
            "coroutines": sorted(one.get("coroutines", [])),
            "threads": sorted(one.get("threads", [])),
            "num_returns": one.get("num_returns"),
            "others": one.get("others", 0),
            "is_timed": "timeout_s" in one,
        }
        return {**told, **({"what": one["what"]} if "what" in one else {})}


def others(call: BlockedCall) -> int:
    """Nobody knows who ends a call that is known by its name alone."""
    return call.others or int(call.kind not in ("await", "lock"))


@pytest.fixture(scope="module", params=["waiter", "driver"])
def whose(request: pytest.FixtureRequest, told_and_seen: tuple[Json, Snapshot]) -> Whose:
    said, snapshot = told_and_seen
    return Whose(said[request.param], snapshot)


def test_each_coroutine_has_the_line_that_the_program_prints(whose: Whose) -> None:
    places = {
        name: (place.line, place.function.rpartition(".")[2]) for name in whose.seen for place in [whose.place(name)]
    }

    assert places == {name: (one["line"], one["function"]) for name, one in whose.said.items()}


def test_each_coroutine_has_the_dependency_that_the_program_prints(whose: Whose) -> None:
    assert {name: whose.waits_for(name) for name in whose.said} == {name: whose.says(name) for name in whose.said}


def test_each_coroutine_has_the_event_loop_that_the_program_prints(whose: Whose) -> None:
    assert {name: one.os_thread_id for name, one in whose.seen.items()} == {
        name: one["thread"] for name, one in whose.said.items()
    }


def test_each_coroutine_has_the_ray_task_that_the_program_prints(told_and_seen: tuple[Json, Snapshot]) -> None:
    said, snapshot = told_and_seen
    waiter, driver = Whose(said["waiter"], snapshot), Whose(said["driver"], snapshot)

    assert {name: one.task_id for name, one in waiter.seen.items()} == {
        name: one["task_id"] for name, one in waiter.said.items()
    }
    assert {name for name, one in waiter.seen.items() if not one.is_task} == {
        name for name in waiter.said if "-" in name
    }
    assert all(one.task_id is None and not one.is_task for one in driver.seen.values())


def test_a_blocked_loop_shows_the_task_that_occupies_it_and_no_waits_of_others(
    told_and_seen: tuple[Json, Snapshot],
) -> None:
    said, snapshot = told_and_seen
    process = Whose(said["waiter"], snapshot).process
    (worker,) = (worker for worker in snapshot.samples[0].workers if worker.process is process)

    blocked = {one.task_id: one.os_thread_id for one in process.threads if one.role == "loop" and one.task_id}

    assert blocked == said["running"]
    assert set(said["behind"]) <= set(worker.running_task_ids or ())
    assert set(said["behind"]).isdisjoint(one.task_id for one in process.coroutines)


def test_a_thread_lock_is_held_by_the_coroutine_that_awaits_in_its_with_block(
    told_and_seen: tuple[Json, Snapshot],
) -> None:
    said, snapshot = told_and_seen
    process = Whose(said["waiter"], snapshot).process

    (call,) = (one.call for one in process.threads if one.call and one.call.kind == "lock")

    assert call.coroutines == (said["waiter"]["has_thread_lock"]["id"],)
    assert call.inferred


def test_threads_wait_for_the_coroutines_that_they_run_or_submit(told_and_seen: tuple[Json, Snapshot]) -> None:
    said, snapshot = told_and_seen
    threads = {one.name: one.call for one in Whose(said["driver"], snapshot).process.threads}
    runs, asks = threads["asyncio-run"], threads["asks"]

    assert runs
    assert (runs.kind, runs.coroutines) == ("await", (said["driver"]["asyncio-run"]["id"],))
    assert asks
    assert (asks.kind, asks.coroutines) == ("future", (said["driver"]["asked"]["id"],))
