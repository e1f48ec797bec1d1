"""The probe's actor in a real Ray worker: its answers, their size, and its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clusters.ray_clusters import Example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import Child, running

pytestmark = pytest.mark.ray

ALIKE = 10
IDLE_S = 3.0
MAX_PACKED_BYTES = 20 * 1024
"""The budget for the answer of ten workers that are alike."""


@pytest.fixture(scope="module")
def alike(shared: SharedCluster) -> Iterator[Example]:
    with shared.running(PROGRAMS / "drivers" / "alike_workers.py") as example:
        yield example


@pytest.fixture(scope="module")
def child(alike: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    command = [sys.executable, str(PROGRAMS / "tools" / "ask_probe_actor.py"), alike.address, str(IDLE_S)]
    log = tmp_path_factory.mktemp("actor") / "log"
    with running(command, {**alike.environment, "PYTHONPATH": ":".join(sys.path)}, log) as started:
        yield started


@pytest.fixture(scope="module")
def found(child: Child) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(child.wait_for_line("answered ", deadline_s=120).removeprefix("answered "))
    return answered


def members(replies: dict[str, Any]) -> dict[str, Any]:
    """The replies of the alike workers, whose lists Ray orders anew each time."""
    return {
        worker_id: {
            **data,
            "tasks": sorted(data["tasks"], key=lambda task: task["task_id"]),
            "refs": sorted(data["refs"], key=lambda ref: ref["ref"]),
        }
        for worker_id, data in replies.items()
        if data["actor_id"] and data["tasks"]
    }


def test_the_answer_of_ten_alike_workers_is_small(found: dict[str, Any]) -> None:
    processes = [found["answer"]["processes"][worker_id] for worker_id in members(found["answer"]["core_workers"])]

    assert len(processes) == ALIKE
    assert all(sum(one["name"].startswith("loader-") for one in process["threads"]) == 5 for process in processes)
    assert found["packed_bytes"] <= MAX_PACKED_BYTES


def test_core_workers_tell_their_node_what_they_tell_the_caller(found: dict[str, Any]) -> None:
    by_probe, direct = members(found["answer"]["core_workers"]), members(found["direct"])

    assert len(by_probe) == ALIKE
    assert by_probe == direct
    assert {len(data["tasks"]) for data in by_probe.values()} == {3}
    assert [one for one in found["answer"]["failures"] if one["stage"] == "core worker"] == []


def test_an_actor_that_is_not_used_leaves_the_cluster(child: Child, found: dict[str, Any]) -> None:
    assert child.wait_for_line("ended ", deadline_s=60) in ("ended ActorDiedError", "ended RayActorError")
