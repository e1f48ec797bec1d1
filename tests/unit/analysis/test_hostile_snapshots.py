"""An untrusted snapshot is rejected with a sentence or shown, in bounded time: 10,000 mutated recorded snapshots."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import SnapshotFileError
from dstack.files.snapshot_file import dumps, load, loads
from dstack.model.snapshot import VERSION, Snapshot
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from dstack.words import UNSEEN
from tests.fuzzing.effort import IS_SEARCH, tries
from tests.fuzzing.mutations import ByValues, by_bytes
from tests.tui.sources import RECORDED

MUTATIONS = tries(10_000)
REPORTED = 1 if IS_SEARCH else 4
"""Every so many of the mutations that load are also printed, which takes most of the time."""
MOST_S = 5.0
FILES = sorted(RECORDED.glob("*.json.gz"))


def mutated() -> Iterator[bytes]:
    chance = random.Random(time.time() if IS_SEARCH else 3)
    texts = [dumps(load(file)) for file in FILES]
    values = [ByValues(text) for text in texts]
    for number in range(MUTATIONS):
        which = number % len(FILES)
        yield by_bytes(texts[which], chance) if number % 4 == 0 else values[which].one(chance)


@pytest.mark.timeout(36_000 if IS_SEARCH else 1_800)
def test_mutations_are_shown_or_rejected() -> None:
    shown = rejected = 0
    slowest_s = 0.0

    for data in mutated():
        began = time.process_time()
        try:
            snapshot = loads(data)
        except SnapshotFileError as error:
            rejected += 1
            text = str(error)
        else:
            shown += 1
            analysed = AnalysedSnapshot.of(snapshot)
            check_json(analysed)
            text = report_text(analysed) if shown % REPORTED == 0 else ""
        assert not UNSEEN.search(text.replace("\n", ""))
        slowest_s = max(slowest_s, time.process_time() - began)

    assert min(shown, rejected) > MUTATIONS / 4
    assert slowest_s < MOST_S


# Expensive snapshots


Json = dict[str, Any]


def thread(number: int, site: str, kind: str, **need: Any) -> Json:
    plain = {"os_thread_id": number, "name": "t", "stack": 0, "role": "user", "still": True}
    return {**plain, "call": {"site": site, "frame": 0, "need": {"kind": kind, **need}}}


def document(threads: list[Json], coroutines: list[Json] | None = None, *, depth: int = 1, **members: Any) -> Json:
    """Two samples of one process."""
    process: Json = {"pid": 1, "started_at": 1, "tasks_read": True, "coroutines_read": True}
    process = {**process, "threads": threads, "coroutines": coroutines or []}
    worker = {"worker_id": "0" * 56, "running_task_ids": [], "process": process}
    return {
        "schema": "dstack.snapshot",
        "version": list(VERSION),
        "dstack_version": "0",
        "taken_at": 1.7e9,
        "address": "a:1",
        "ray_version": "2.60.0",
        "nodes": [{"node_id": f"n{i}", "ip": f"1.1.1.{i}"} for i in range(200)],
        "workers": [
            {"worker_id": "0" * 56, "node_id": "n0", "ip": "1.1.1.0", "port": 1, "pid": 1, "job_id": "01000000"}
        ],
        "frames": [{"function": f"f{i}", "file": "f.py", "line": i} for i in range(100)],
        "stacks": [[i % 100 for i in range(depth)]],
        "samples": [{"began_s": i, "ended_s": i + 1, "workers": [worker], **members} for i in range(2)],
    }


def task(number: int, **more: Any) -> Json:
    plain = {"task_id": f"{number:048x}", "owner_id": "0" * 56, "name": f"t{number}", "kind": "NORMAL_TASK"}
    return {**plain, "state": "PENDING_NODE_ASSIGNMENT", "job_id": "01000000", **more}


def refs(count: int) -> list[str]:
    return [f"{number:048x}01000000" for number in range(count)]


def resources(amount: float) -> dict[str, Json]:
    return {f"n{node}": {"CPU": amount} for node in range(200)}


MADE: dict[str, Callable[[], Json]] = {
    "a chain": lambda: document(
        [thread(i, site="thread.join", kind="executions", threads=[i + 1]) for i in range(5000)]
    ),
    "a ring": lambda: document(
        [thread(i, site="thread.join", kind="executions", threads=[(i + 1) % 5000]) for i in range(5000)]
    ),
    "all for all": lambda: document(
        [thread(i, site="threading.Lock.acquire", kind="executions", threads=list(range(200))) for i in range(200)]
    ),
    "a chain of coroutines": lambda: document(
        [],
        [
            {"coroutine_id": hex(i), "name": "c", "stack": 0, "still": True}
            | {"call": {"site": "await", "frame": 0, "need": {"kind": "awaitables", "coroutines": [hex(i + 1)]}}}
            for i in range(5000)
        ],
    ),
    "long stacks": lambda: document(
        [thread(i, site="thread.join", kind="executions", threads=[i + 1]) for i in range(100)], depth=100_000
    ),
    "the same ref": lambda: document([thread(i, site="ray.get", kind="refs", refs=refs(1) * 2000) for i in range(20)]),
    "many refs": lambda: document([thread(i, site="ray.get", kind="refs", refs=refs(1000)) for i in range(20)]),
    "tasks that are each other's parents": lambda: document(
        [thread(1, site="ray.get", kind="refs", refs=refs(1000))],
        tasks=[task(i, parent_task_id=f"{(i + 1) % 1000:048x}") for i in range(1000)],
    ),
    "tasks that each want something else": lambda: document(
        [thread(1, site="ray.get", kind="refs", refs=refs(1000))],
        tasks=[task(i, required_resources={"CPU": 1.0 + i, f"r{i}": 1.0}) for i in range(1000)],
        total=resources(1e6),
        available=resources(0.0),
    ),
    "placement groups": lambda: document(
        [thread(1, site="ray.get", kind="refs", refs=refs(1))],
        placement_groups=[
            {"placement_group_id": f"p{i}", "state": "PENDING", "strategy": "STRICT_SPREAD"}
            | {"bundles": [{"resources": {"CPU": 1}}] * 100}
            for i in range(200)
        ],
        total=resources(4.0),
    ),
    "a name without end": lambda: document(
        [thread(1, site="ray.get", kind="refs", refs=refs(1))], tasks=[task(0, name="n\x1b" * 5_000_000)]
    ),
}


SLOW = "tasks that each want something else"


@pytest.mark.parametrize(
    "made",
    [pytest.param(make, id=name, marks=[pytest.mark.exhaustive] * (name == SLOW)) for name, make in MADE.items()],
)
def test_an_expensive_snapshot_is_diagnosed_in_bounded_time(made: Callable[[], Json]) -> None:
    began = time.process_time()

    snapshot: Snapshot = loads(json.dumps(made()).encode())
    analysed = AnalysedSnapshot.of(snapshot)
    text = report_text(analysed)
    check_json(analysed)

    assert time.process_time() - began < 4 * MOST_S
    assert len(text) < 1_000_000
