"""Calls that wait for a slot of their actor: threads, concurrency groups, event loops."""

import pytest

from tests.clusters.dstack_command import Json, settled_check
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS

pytestmark = pytest.mark.ray

PROGRAM = PROGRAMS / "drivers/actor_slots.py"
STUCK = [
    ["Blocking.inner", "Blocking.outer"],
    ["Grouped.same_group", "Grouped.stuck"],
    ["Threaded.inner", "Threaded.outer"],
]
"""``Grouped.default_group`` runs in another group, so its end does not free a slot for ``Grouped.stuck``."""


@pytest.fixture(scope="module")
def document(shared: SharedCluster) -> Json:
    with shared.running(PROGRAM) as running:
        return settled_check(running.address, running.environment, is_shown_by_both_samples)


def is_shown_by_both_samples(document: Json) -> bool:
    found = deadlocks(document)
    return len(found) == len(STUCK) and all(one["confirmed"] or one["assumed"] for one in found)


def test_only_actors_whose_waiters_occupy_all_their_slots_are_deadlocked(document: Json) -> None:
    found = deadlocks(document)

    assert sorted(members(finding) for finding in found) == STUCK
    assert [(members(one), one["assumed"]) for one in found if not one["confirmed"]] == [
        (STUCK[1], ["Grouped.same_group runs in the concurrency group io of its actor, as declared"])
    ]


def test_each_running_call_has_its_thread(document: Json) -> None:
    (finding,) = (finding for finding in deadlocks(document) if "Threaded.outer" in members(finding))

    outer = [member for member in finding["members"] if member["task_name"] == "Threaded.outer"]

    assert len({member["task_id"] for member in outer}) == len(outer) == 2
    assert {member["function"] for member in outer} <= {"outer", "Threaded.outer"}
    assert all(wait["evidence"] == "exact" for member in outer for wait in member["waits_for"])


def deadlocks(document: Json) -> list[Json]:
    return [finding for finding in document["findings"] if finding["kind"] == "deadlock"]


def members(finding: Json) -> list[str]:
    """The calls in it, without their actors."""
    return sorted({member["execution"].partition(" of ")[0] for member in finding["members"]})
