"""What can be cancelled or killed to break a deadlock, and what that frees."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.breaks import Break, breaks_of, find_break, shortest_name
from dstack.errors import UsageError
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from tests.examples.recorded import recorded
from tests.unit.analysis.findings.kinds.small_findings import ring
from tests.unit.scenes import Scene


def ways(snapshot: Snapshot) -> list[Break]:
    analysed = AnalysedSnapshot.of(snapshot)
    return breaks_of(analysed.first_index, analysed.diagnosis)[0]


def named(snapshot: Snapshot) -> list[tuple[str, str, int, int, int]]:
    return [(one.action, one.name, len(one.ended), len(one.freed), len(one.left)) for one in ways(snapshot)]


def test_a_running_call_is_cancelled_where_that_ends_ray_get_and_its_actor_killed() -> None:
    snapshot = load(recorded("two_actors"))

    found = [one for one in named(snapshot) if one[0] == "cancel"]
    before = [one for one in named(replace(snapshot, ray_version="2.46.0")) if one[0] == "cancel"]

    assert found == [("cancel", "Cashier.order", 1, 3, 0), ("cancel", "Kitchen.cook", 1, 3, 0)]
    assert before == []
    assert ("kill", 'actor Kitchen "kitchen"', 1, 3, 0) in named(snapshot)


def test_a_call_that_blocks_its_event_loop_or_is_queued_is_not_cancelled() -> None:
    assert [one[:2] for one in named(load(recorded("hangs/sync_get_in_async_method")))] == [
        ("kill", 'actor Office "office"')
    ]


def test_a_pending_task_and_the_end_of_a_holder_of_resources_free_the_rest() -> None:
    task, holder = named(load(recorded("hangs/licence_not_lent")))[0], named(load(recorded("hangs/actors_for_life")))[0]

    assert task == ("cancel", "refine", 1, 2, 0)
    assert holder[0] == "kill"
    assert holder[3:] == (3, 0)


def test_each_deadlock_has_ways_of_its_own() -> None:
    scene = Scene()
    ring(scene, "A", "B")
    ring(scene, "C", "D", "E")
    analysed = AnalysedSnapshot.of(scene.snapshot())

    found = breaks_of(analysed.first_index, analysed.diagnosis)

    killed = [{one.known_as[-1] for one in found[at] if one.action == "kill"} for at in sorted(found)]
    assert killed == [{"C", "D", "E"}, {"A", "B"}]


def test_a_way_is_found_by_its_name_and_an_unknown_or_ambiguous_one_is_refused() -> None:
    analysed = AnalysedSnapshot.of(load(recorded("ring_of_five")))
    found = breaks_of(analysed.first_index, analysed.diagnosis)
    members = [one for one in found[0] if one.name == "Member.pass_token"]

    assert len(members) == 3
    assert find_break(found, members[0].id) == (0, members[0])
    assert shortest_name(members[0], found[0]) == members[0].id
    with pytest.raises(UsageError, match="3 tasks or actors of deadlocks are called"):
        find_break(found, "Member.pass_token")
    with pytest.raises(UsageError, match="No task or actor 'Nobody'"):
        find_break(found, "Nobody")
