"""The reversed wait-for graph: cycles and final blockers at the top, each waiter once, similar waiters as one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.views.wait_tree import WaitBranch, WaitTree, as_drawn
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from tests.examples.recorded import recorded
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.scenes import Scene
from tests.unit.simulations.tasks import ClusterScene, SimulatedCluster, task_clusters
from tests.unit.support.random_snapshots import related_snapshots


def tree_of(snapshot: Snapshot) -> tuple[WaitTree, Diagnosis]:
    index = SampleIndex(snapshot, snapshot.samples[0])
    diagnosis = as_drawn(index, diagnose(snapshot))
    return WaitTree(index, diagnosis), diagnosis


def branches(tree: WaitTree) -> list[WaitBranch]:
    """All branches, from the top down."""
    ahead, found = list(reversed(tree.roots)), []
    while ahead:
        branch = ahead.pop()
        children = tree.children(branch)
        assert bool(children) == branch.expands or branch.role == "one" or branch.place != "here"
        found.append(branch)
        ahead += reversed([child for child in children if child.role != "each"])
    return found


def check_invariants(snapshot: Snapshot) -> None:
    """Checks the invariants of a tree."""
    tree, diagnosis = tree_of(snapshot)
    found = branches(tree)
    here = [key for branch in found if branch.place == "here" and branch.role != "cycle" for key in branch.vertices]
    waiting = {key for key, vertex in diagnosis.vertices.items() if any(targets_of(vertex))}

    assert len(here) == len(set(here))
    assert waiting <= set(here)
    assert len({branch.key for branch in found}) == len(found)
    for branch in found:
        if branch.place == "here" and branch.role != "cycle":
            assert tree.way_to(branch.first)[-1] == branch
        if branch.edge is not None:
            wait = diagnosis.vertices[branch.edge.waiter].wait
            assert wait is not None
            assert branch.edge.target in {target.vertex for target in wait.all_targets}


@given(task_clusters())
def test_every_waiter_is_in_the_tree_once(cluster: SimulatedCluster) -> None:
    check_invariants(ClusterScene(cluster).scene.sample().second_sample().snapshot())


@given(related_snapshots())
def test_every_waiter_of_any_snapshot_is_in_the_tree_once(snapshot: Snapshot) -> None:
    assume(snapshot.samples)
    check_invariants(snapshot)


@pytest.mark.parametrize("name", ALL)
def test_every_waiter_of_a_recorded_snapshot_is_in_the_tree_once(name: str) -> None:
    check_invariants(load(RECORDED_CLUSTERS / name))


def ring_of_three() -> tuple[Scene, list[Key]]:
    """Three actors that call each other in a cycle, and a driver that waits for the first."""
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor(name) for name in ("Ann", "Bob", "Cid")]
    calls = [scene.call(actors[0], "go", by=driver)]
    calls += [scene.call(actors[(i + 1) % 3], "go", by=actors[i]) for i in range(3)]
    driver.gets(calls[0])
    for actor, call, following in zip(actors, calls, calls[1:], strict=False):
        actor.runs(call).gets(following)
    return scene, [actor.key for actor in actors]


def test_a_cycle_is_drawn_once_and_closes_at_its_first_member() -> None:
    scene, actors = ring_of_three()
    tree, diagnosis = tree_of(scene.sample().second_sample().snapshot())

    (cycle,) = tree.roots
    ring = tree.children(cycle)

    assert cycle.role == "cycle"
    assert cycle.finding == 0
    assert cycle.vertices == diagnosis.findings[0].cycle
    assert {branch.first for branch in ring} >= set(actors)
    edges = [branch.edge for branch in ring if branch.edge]
    assert [edge.waiter for edge in edges] == list(cycle.vertices)
    assert [edge.target for edge in edges] == [*cycle.vertices[1:], cycle.vertices[0]]
    assert [branch.number for branch in ring] == [*range(1, len(ring) + 1)]
    assert [branch.follows for branch in ring] == [*range(2, len(ring) + 1), 1]


def test_a_waiter_of_a_cycle_is_below_its_member() -> None:
    scene, actors = ring_of_three()
    tree, _ = tree_of(scene.snapshot())
    driver = scene.procs[0].key

    way = tree.way_to(driver)

    assert [branch.role for branch in way] == ["cycle", "ring", "waiter"]
    assert way[1].first == actors[0]
    assert way[0].below == 1
    assert not tree.children(way[-1])


def test_an_edge_shows_kind_ref_time_and_evidence() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.gets(call)
    tree, _ = tree_of(scene.sample().second_sample().snapshot())

    (root,) = tree.roots
    (below,) = tree.children(root)

    assert (root.role, root.first, root.below) == ("end", worker.key, 1)
    assert below.edge is not None
    assert (below.edge.waiter, below.edge.target, below.edge.refs) == (driver.key, worker.key, (call.ref,))
    assert below.edge.words == ("ray.get", "exact", f"ref {call.ref[:8]}")


def test_an_inferred_edge_shows_its_reason() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.threaded_actor(2, "Clerk")
    calls = [scene.call(clerk, "stamp", by=driver).arrives() for _ in range(3)]
    clerk.runs(*calls[:2])
    driver.gets(calls[2])
    tree, _ = tree_of(scene.snapshot())

    queued = tree.way_to(calls[2].key)[-1]

    assert queued.edge is not None
    assert queued.edge.words == ("actor slot", "1 of 2", "inferred")
    assert queued.edge.because == "any of the 2 running calls may end first"


def test_an_assumed_edge_shows_its_assumption() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.threaded_actor(2, "Clerk")
    clerk.groups, clerk.tasks_read = {"read": "io"}, True
    reads = scene.call(clerk, "read", by=driver)
    writes = scene.call(clerk, "write", by=driver)
    queued = scene.call(clerk, "read", by=driver).arrives()
    clerk.runs(reads, writes)
    driver.gets(queued)
    tree, _ = tree_of(scene.snapshot())

    edge = tree.way_to(queued.key)[-1].edge

    assert edge is not None
    assert edge.evidence == "assumed"
    assert edge.because == "Clerk.read runs in the concurrency group io of its actor, as declared"


def crowd(size: int) -> Scene:
    """Tasks, each on a worker of its own, that all wait for one call of an actor."""
    scene = Scene()
    driver, store = scene.driver(), scene.actor("Store")
    load_call = scene.call(store, "load", by=driver)
    store.runs(load_call)
    tasks = []
    for _ in range(size):
        call, worker = scene.run("train", by=driver)
        worker.threads[0].line = 7
        worker.gets(load_call)
        tasks.append(call)
    driver.gets(*tasks)
    return scene


def test_similar_waiters_are_one_with_a_count_and_their_common_waiter_is_below_once() -> None:
    scene = crowd(500)
    tree, _ = tree_of(scene.snapshot())

    (root,) = tree.roots
    (train,) = tree.children(root)
    driver, each = tree.children(train)

    assert (train.count, train.below) == (500, 1)
    assert driver.first == scene.procs[0].key
    assert driver.edge is not None
    assert driver.edge.awaited == 500
    assert driver.edge.words == ("ray.get", "exact", "500 refs")
    assert (each.role, each.count) == ("each", 500)
    assert [one.first for one in tree.children(each)] == list(train.vertices)


def test_a_waiter_at_another_place_is_named_and_not_followed() -> None:
    scene = Scene()
    driver = scene.driver()
    first, _ = scene.run("first", by=driver)
    second, _ = scene.run("second", by=driver)
    both, waiter = scene.run("both", by=driver)
    waiter.gets(first, second)
    driver.gets(both)
    tree, _ = tree_of(scene.snapshot())

    below = [tree.children(root)[0] for root in tree.roots]

    assert [branch.first for branch in below] == [waiter.key, waiter.key]
    assert [branch.place for branch in below] == ["here", "elsewhere"]
    assert [branch.expands for branch in below] == [True, False]
    assert len({branch.key for branch in below}) == 2


def test_a_waiter_across_a_cycle_is_named_as_above() -> None:
    scene = Scene()
    driver = scene.driver()
    ann, bob, cid = (scene.actor(name) for name in ("Ann", "Bob", "Cid"))
    of_ann, of_bob, of_cid = (scene.call(actor, "go", by=driver) for actor in (ann, bob, cid))
    ann.runs(of_ann).gets(of_bob, of_cid)
    bob.runs(of_bob).gets(of_ann)
    cid.runs(of_cid).gets(of_bob)
    tree, _ = tree_of(scene.snapshot())

    (cycle,) = tree.roots
    ring = {branch.first: branch for branch in tree.children(cycle)}
    (across,) = tree.children(ring[bob.key])
    (back,) = tree.children(across)

    assert set(ring) == {ann.key, bob.key}
    assert (across.first, across.place) == (cid.key, "here")
    assert (back.first, back.place, back.expands) == (ann.key, "above", False)


def test_timed_waits_for_each_other_are_a_cycle() -> None:
    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=driver)
    left.runs(ping).gets(pong, timeout_s=5.0)
    right.runs(pong).gets(ping, timeout_s=5.0)
    tree, diagnosis = tree_of(scene.snapshot())

    (cycle,) = tree.roots

    assert diagnosis.verdict != "deadlock"
    assert cycle.role == "cycle"
    assert {"timeout 5 s" in branch.edge.words for branch in tree.children(cycle) if branch.edge} == {True}


def test_a_vertex_without_waits_is_not_in_the_tree() -> None:
    scene = crowd(2)
    idle = scene.actor("Idle").idles()
    tree, _ = tree_of(scene.snapshot())

    assert not tree.stands(idle.key)
    assert tree.way_to(idle.key) == ()


def test_sockets_whose_other_ends_are_known_lead_to_their_processes_and_to_no_unknown_code() -> None:
    snapshot = load(recorded("hangs/message_queue_lost_message"))
    tree, diagnosis = tree_of(snapshot)

    (cycle,) = tree.roots

    assert (cycle.role, cycle.finding, len(cycle.vertices)) == ("cycle", 0, 2)
    assert {diagnosis.vertices[key].kind for key in cycle.vertices} == {"execution"}
    assert [branch.edge.evidence for branch in tree.children(cycle) if branch.edge] == ["assumed", "assumed"]
