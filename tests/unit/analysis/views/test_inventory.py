"""The parts of a cluster and their activities, and pending parts with what they lack."""

from __future__ import annotations

import pytest
from hypothesis import assume, given

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.inventory import ClusterInventory, WorkerSummary, group_similar_workers
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Bundle, Snapshot
from dstack.observed.node import Failure
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.scenes import Scene
from tests.unit.support.random_snapshots import related_snapshots


def inventory_of(snapshot: Snapshot) -> ClusterInventory:
    return ClusterInventory(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot))


def summaries_of(scene: Scene) -> dict[str, WorkerSummary]:
    inventory = inventory_of(scene.snapshot())
    return {
        one.worker.worker_id: one for node in inventory.nodes for one in inventory.summaries(inventory.on_node(node))
    }


def texts(inventory: ClusterInventory, worker_id: str) -> list[str]:
    return [group.text for group in inventory.executions(worker_id)]


def check_invariants(snapshot: Snapshot) -> None:
    """Checks the invariants of an inventory."""
    inventory = inventory_of(snapshot)
    known = {node.node_id for node in snapshot.nodes}
    found = [one for node in inventory.nodes for one in inventory.summaries(inventory.on_node(node))]
    if len(known) == len(snapshot.nodes):
        assert len(found) == sum(worker.node_id in known for worker in snapshot.workers)
    for node in inventory.nodes:
        workers = inventory.summaries(inventory.on_node(node))
        assert sum(inventory.counts(inventory.on_node(node)).values()) == len(workers)
        assert sum(map(len, group_similar_workers(workers))) == len(workers)
        inventory.resources.amounts(node), inventory.resources.placement_groups_on(node), inventory.dead_actors(node)
    for one in found:
        activities = inventory.executions(one.worker.worker_id)
        assert sum(group.count for group in activities) == sum(one.counts.values()) or one.activity in (
            "idle",
            "not read",
        )
        inventory.held_by(one.worker.worker_id)
    pending_items = inventory.pending_items()
    assert all(one.count == len(one.similar) for one in pending_items)


@given(related_snapshots())
def test_every_worker_is_counted_once(snapshot: Snapshot) -> None:
    assume(snapshot.samples)
    check_invariants(snapshot)


@pytest.mark.parametrize("name", ALL)
def test_every_worker_of_a_recorded_snapshot_is_counted_once(name: str) -> None:
    check_invariants(load(RECORDED_CLUSTERS / name))


def test_a_node_shows_its_used_and_free_resources() -> None:
    scene = Scene()
    node = scene.node(free={"CPU": 1.0, "object_store_memory": 2.0**30}, CPU=4.0, GPU=2.0, object_store_memory=2.0**31)
    scene.driver(node)

    inventory = inventory_of(scene.snapshot())
    amounts = inventory.resources.amounts(inventory.nodes[0])

    assert [amount.words for amount in amounts] == [
        "CPU 3 of 4 used, 1 free",
        "GPU 2 of 2 used, 0 free",
        "object store 1.0 of 2.0 GiB used",
    ]


def test_resources_that_a_node_did_not_report_are_unknown() -> None:
    scene = Scene()
    node = scene.node(CPU=4.0)
    del scene.available[node.node_id]
    inventory = inventory_of(scene.snapshot())

    assert [amount.words for amount in inventory.resources.amounts(node)] == ["CPU 4, use unknown"]


def test_each_worker_shows_its_activity() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    busy, worker = scene.run("work", by=driver)
    call = scene.call(clerk, "stamp", by=driver)
    clerk.runs(call).gets(busy)
    for _ in range(3):
        scene.call(clerk, "stamp", by=driver)
    driver.gets(call)
    idle = scene.worker().idles()
    unreachable = scene.worker()
    unreachable.is_unreachable = unreachable.is_unreadable = True

    found = summaries_of(scene)
    inventory = inventory_of(scene.snapshot())

    activities = {proc.worker_id: found[proc.worker_id].activity for proc in scene.procs}
    assert activities == {
        driver.worker_id: "waiting",
        clerk.worker_id: "waiting",
        worker.worker_id: "running",
        idle.worker_id: "idle",
        unreachable.worker_id: "not read",
    }
    assert found[clerk.worker_id].queued == 3
    assert found[driver.worker_id].queued == 0
    assert not inventory.is_queue_known
    assert texts(inventory, clerk.worker_id) == ["Clerk.stamp waits in ray.get for work"]
    assert texts(inventory, worker.worker_id) == ["work is running"]
    assert texts(inventory, idle.worker_id) == []


def test_an_activity_has_its_line() -> None:
    scene = Scene()
    _, worker = scene.run("work", by=scene.driver())
    worker.threads[0].line = 7

    (group,) = inventory_of(scene.snapshot()).executions(worker.worker_id)

    assert (group.vertex, group.file, group.line, group.source) == (
        worker.key,
        "/srv/app/app.py",
        7,
        "return work_of(me)",
    )


def test_executions_in_or_behind_a_deadlock_are_stuck() -> None:
    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
    back = scene.call(left, "back", by=right)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(back)

    inventory = inventory_of(scene.snapshot())

    assert inventory.counts(inventory.on_node(inventory.nodes[0])) == {"stuck": 3}


def test_an_unobserved_worker_shows_its_reason() -> None:
    scene = Scene()
    worker = scene.worker()
    worker.is_unreadable = True
    node_id = worker.worker.node_id
    scene.failures.append(Failure(stage="stacks", reason="py-spy needs root", node_id=node_id, pid=worker.worker.pid))

    trouble = summaries_of(scene)[worker.worker_id].trouble

    assert trouble == "threads not read: py-spy needs root"


def test_similar_workers_are_one_row() -> None:
    scene = Scene()
    driver = scene.driver()
    busy, _ = scene.run("busy", by=driver)
    for number in range(5):
        _, worker = scene.run("work", by=driver)
        worker.threads[0].line = 7 if number else 8
        worker.gets(busy)
    inventory = inventory_of(scene.snapshot())

    groups = group_similar_workers(inventory.summaries(inventory.on_node(inventory.nodes[0])))

    assert sorted(len(group) for group in groups) == [1, 1, 1, 4]


def test_similar_coroutines_are_one_row() -> None:
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    busy, _ = scene.run("busy", by=driver)
    for _ in range(4):
        coro = server.coroutine()
        coro.line = 5
        coro.awaits(busy)

    (group,) = inventory_of(scene.snapshot()).executions(server.worker_id)

    assert group.count == 4
    assert group.activity == "waiting"


def test_a_coroutine_that_was_not_read_is_unreadable() -> None:
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    call = scene.call(server, "serve", by=driver)
    server.running = [call]
    driver.gets(call)

    found = summaries_of(scene)[server.worker_id]

    assert found.activity == "unreadable"
    assert "is unreadable" in texts(inventory_of(scene.snapshot()), server.worker_id)[0]


def test_a_placement_group_shows_its_bundles_and_their_free_resources() -> None:
    scene = Scene()
    node, other = scene.node(CPU=8.0), scene.node(CPU=8.0)
    scene.driver(node)
    bundles = [Bundle(resources={"CPU": 2.0}, node_id=one.node_id) for one in (node, other, node)]
    group = scene.group("CREATED", *bundles, name="trainers")
    scene.available[node.node_id][f"CPU_group_{group.placement_group_id}"] = 1.0
    inventory = inventory_of(scene.snapshot())

    (here,) = inventory.resources.placement_groups_on(node)
    (there,) = inventory.resources.placement_groups_on(other)

    assert (here.bundles, [amount.words for amount in here.amounts]) == ((0, 2), ["CPU 3 of 4 used, 1 free"])
    assert (there.bundles, [amount.words for amount in there.amounts]) == ((1,), ["CPU 2 of 2 used, 0 free"])


def test_pending_parts_show_what_they_lack_and_similar_ones_are_one_row() -> None:
    scene = Scene()
    node = scene.node(free={"CPU": 0.0}, CPU=1.0)
    driver = scene.driver(node)
    scene.run("holder", by=driver, node=node, CPU=1.0)
    for _ in range(20):
        scene.task("next", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 1.0})
    scene.task("huge", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 64.0})
    creation = scene.pending_actor("Trainer", driver, GPU=1.0)[1].becomes(state="PENDING_NODE_ASSIGNMENT")
    scene.group("PENDING", Bundle(resources={"CPU": 1.0}), name="trainers")

    pending_items = {one.text: one for one in inventory_of(scene.snapshot()).pending_items()}

    rows = {text: (one.what, one.count, one.is_stuck) for text, one in pending_items.items()}
    assert rows["next waits for CPU, held by holder"] == ("task", 20, False)
    assert rows["huge asks for 64 CPU, but the most a node has is 1 CPU"] == ("task", 1, True)
    assert ("actor", 1, True) in rows.values()
    assert rows["placement group trainers waits for CPU, held by holder"] == ("placement group", 1, False)
    assert {one.vertex for one in pending_items.values()} > {creation.key}


def test_queued_calls_are_shown_with_their_actor_and_not_as_pending() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(3)]
    clerk.runs(calls[0])

    assert inventory_of(scene.snapshot()).pending_items() == ()


def test_dead_nodes_come_last_and_dead_actors_are_listed() -> None:
    scene = Scene()
    dead, node = scene.node(alive=False, CPU=1.0), scene.node(CPU=1.0)
    scene.driver(node)
    actor = scene.actor("Gone", node)
    scene.dies(actor, "killed by a test")
    inventory = inventory_of(scene.snapshot())

    assert [one.node_id for one in inventory.nodes] == [node.node_id, dead.node_id]
    assert [one.death_cause for one in inventory.dead_actors(node)] == ["killed by a test"]
