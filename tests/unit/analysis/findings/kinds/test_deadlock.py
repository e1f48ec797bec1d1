"""Deadlocks: their cycle, their members, and the waiters behind them."""

from __future__ import annotations

import time

import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.findings.narration import SHOWN_CYCLE
from dstack.model.diagnosis import Entry
from dstack.model.vertex_keys import ThreadKey
from tests.unit.analysis.findings.kinds.small_findings import infeasible, kinds, only_finding, ring
from tests.unit.scenes import Scene


def test_independent_deadlocks_are_separate_findings_the_larger_first() -> None:
    scene = Scene()
    pair, trio = ring(scene, "A", "B"), ring(scene, "C", "D", "E")

    diagnosis = scene.diagnose()

    assert kinds(diagnosis) == ["deadlock", "deadlock"]
    assert {actor.key for actor in trio} <= set(diagnosis.findings[0].members)
    assert {actor.key for actor in pair} <= set(diagnosis.findings[1].members)


def test_the_cycle_has_the_order_of_waiting_and_begins_at_an_execution() -> None:
    scene = Scene()
    actors = ring(scene, "A", "B", "C")

    finding = only_finding(scene.diagnose())

    executions = [key for key in finding.cycle if isinstance(key, ThreadKey)]
    assert executions == [actor.key for actor in actors]
    assert finding.cycle[0] == actors[0].key
    assert finding.members == finding.cycle


def test_the_cycle_begins_at_the_member_with_outside_waiters() -> None:
    scene = Scene()
    actors = ring(scene, "A", "B", "C")
    scene.driver().gets(actors[1].running[0])

    assert only_finding(scene.diagnose()).cycle[0] == actors[1].key


def test_the_shortest_cycle_is_explained_and_the_others_are_members() -> None:
    scene = Scene()
    actors = ring(scene, "A", "B", "C", "D")
    (forth,) = actors[1].submitted
    actors[1].gets(scene.call(actors[0], "back", by=actors[1]), forth)

    finding = only_finding(scene.diagnose())

    assert {key for key in finding.cycle if isinstance(key, ThreadKey)} == {actors[0].key, actors[1].key}
    assert {actor.key for actor in actors} <= set(finding.members)


def test_all_waiters_of_a_deadlock_are_behind_it() -> None:
    scene = Scene()
    left, _ = ring(scene, "Left", "Right")
    near, far = scene.driver(), scene.driver()
    relay, worker = scene.run("relay", by=far)
    near.gets(left.running[0])
    worker.gets(left.running[0])
    far.gets(relay)

    finding = only_finding(scene.diagnose())

    assert set(finding.blocked_behind) == {near.key, worker.key, far.key}


def test_a_waiter_of_two_deadlocks_is_behind_both() -> None:
    scene = Scene()
    (first,), (second,) = ring(scene, "Self"), ring(scene, "Other")
    driver = scene.driver()
    driver.gets(first.running[0], second.running[0])

    behind = [set(finding.blocked_behind) for finding in scene.diagnose().findings]

    assert behind == [{driver.key}, {driver.key}]


def test_a_cycle_that_also_waits_for_an_infeasible_task_is_both() -> None:
    scene = Scene()
    left, right = ring(scene, "Left", "Right")
    big = infeasible(scene, by=left)
    left.gets(left.submitted[0], big)

    diagnosis = scene.diagnose()

    assert kinds(diagnosis) == ["deadlock", "infeasible"]
    assert {left.key, right.key} <= set(diagnosis.findings[0].members)
    assert diagnosis.findings[1].members == (big.key,)
    assert {left.key, right.key} <= set(diagnosis.findings[1].blocked_behind)


def test_a_cycle_over_resources_names_them() -> None:
    scene = Scene()
    scene.node({"CPU": 4.0}, CPU=4.0, GPU=1.0)
    driver = scene.driver()
    outer, worker = scene.run("outer", by=driver, GPU=1.0)
    inner = scene.task("inner", by=worker, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    worker.gets(inner)
    driver.gets(outer)

    finding = only_finding(scene.diagnose())

    assert (finding.kind, finding.resources) == ("deadlock", ("GPU",))
    assert set(finding.members) == {worker.key, inner.key}
    assert finding.blocked_behind == (driver.key,)


def test_the_explanation_of_a_long_cycle_is_cut() -> None:
    scene = Scene()
    ring(scene, *(f"Member{number}" for number in range(SHOWN_CYCLE)))

    finding = only_finding(scene.diagnose())

    assert len(finding.cycle) == 2 * SHOWN_CYCLE
    assert finding.explanation[SHOWN_CYCLE].text == f"{SHOWN_CYCLE} more in the same cycle"


def slots_full_of_acquires(slots: int, releases: int, queued: int) -> Scene:
    """An async actor whose slots all wait for a semaphore, while what would release it is queued behind them."""
    scene = Scene()
    driver, semaphore, clients = scene.driver(), scene.async_actor("Semaphore"), scene.async_actor("Clients")
    acquires = [scene.call(semaphore, "acquire", by=clients) for _ in range(slots)]
    for coroutine in map(semaphore.begins, acquires):
        coroutine.line = 25
        coroutine.is_in("asyncio.Semaphore.acquire", "0x5").is_reached_by(actor=True)
    behind = [scene.call(semaphore, "release", by=clients).arrives() for _ in range(releases)]
    behind += [scene.call(semaphore, "acquire", by=clients).arrives() for _ in range(queued)]
    for call in (*acquires, *behind):
        client = clients.begins(scene.call(clients, "use", by=driver)).awaits(call)
        client.line = 32
    driver.gets(*driver.submitted)
    return scene.sample().second_sample()


@pytest.mark.parametrize(("slots", "queued"), [(20, 0), (1000, 97), (1097, 0)])
def test_many_waiters_are_folded_by_what_they_do(slots: int, queued: int) -> None:
    snapshot = slots_full_of_acquires(slots, 3, queued).snapshot()

    began_s = time.process_time()
    finding = only_finding(diagnose(snapshot))
    took_s = time.process_time() - began_s

    assert finding.summary == (
        f"{slots:,} × Semaphore.acquire at app.py:25 wait for 3 × Semaphore.release, which are queued behind them on "
        "the same actor"
    )
    (entry,) = finding.diagram.rows
    assert isinstance(entry, Entry)
    assert (entry.name, entry.line) == (f"{slots:,} × Semaphore.acquire", 25)
    assert entry.does == "each waits in asyncio.Semaphore.acquire for 3 × Semaphore.release (queued behind →1)"
    assert "ive Semaphore.release a concurrency group of its own" in str(finding.advice)
    assert len(finding.explanation) < 10
    assert took_s < 30.0
