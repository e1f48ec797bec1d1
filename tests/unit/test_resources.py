"""Who waits for which resources, and who holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dstack.analysis.waits import MANY
from dstack.diagnosis import Vertex, Wait
from dstack.model import Bundle, Node
from tests.unit.scenes import Call, Proc, Scene, groups_of

NOTHING: Mapping[str, float] = {}


def pending(scene: Scene, by: Proc, **needs: float) -> Call:
    """A task that has no node yet."""
    return scene.task("wanting", by=by, state="PENDING_NODE_ASSIGNMENT", required_resources=needs)


def holders(scene: Scene, wait: Wait) -> list[Vertex]:
    graph = scene.graph()
    return [graph[target.vertex] for group in wait.groups for target in group.targets]


def labels(scene: Scene, wait: Wait) -> list[str]:
    return [vertex.label for vertex in holders(scene, wait)]


def never(scene: Scene, key: str) -> str | None:
    vertex = scene.graph()[key]
    assert vertex.wait is None
    return vertex.never


# What running tasks hold


def test_a_task_waits_for_the_task_that_holds_what_it_needs() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    driver = scene.driver()
    _, holder = scene.run("train", by=driver, GPU=1.0)

    wait = scene.wait_of(pending(scene, driver, GPU=1.0))

    assert wait.kind == "resources"
    assert wait.resources == ("GPU",)
    assert groups_of(wait) == [(1, [holder.key])]


def test_any_holder_may_let_go_first() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=2.0)
    driver = scene.driver()
    workers = [scene.run("train", by=driver, CPU=1.0)[1] for _ in range(2)]

    wait = scene.wait_of(pending(scene, driver, CPU=2.0))

    assert groups_of(wait) == [(1, [worker.key for worker in workers])]
    assert wait.evidence == "inferred"


def test_only_what_is_missing_is_waited_for() -> None:
    scene = Scene()
    scene.node(free={"CPU": 4.0}, CPU=5.0, GPU=1.0)
    driver = scene.driver()
    scene.run("compute", by=driver, CPU=1.0)
    _, holder = scene.run("train", by=driver, GPU=1.0)

    wait = scene.wait_of(pending(scene, driver, CPU=1.0, GPU=1.0))

    assert wait.resources == ("GPU",)
    assert groups_of(wait) == [(1, [holder.key])]


def test_on_any_node_that_could_fit_it() -> None:
    scene = Scene()
    nodes = [scene.node(free=NOTHING, GPU=1.0), scene.node(free=NOTHING, GPU=2.0), scene.node(CPU=8.0)]
    driver = scene.driver(nodes[2])
    workers = [scene.run("train", by=driver, node=node, GPU=node.resources["GPU"])[1] for node in nodes[:2]]

    either, larger = pending(scene, driver, GPU=1.0), pending(scene, driver, GPU=2.0)

    assert groups_of(scene.wait_of(either)) == [(1, [worker.key for worker in workers])]
    assert groups_of(scene.wait_of(larger)) == [(1, [workers[1].key])]


def test_a_task_that_waits_for_a_value_has_lent_back_its_cpu() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=2.0)
    driver = scene.driver()
    _, computing = scene.run("compute", by=driver, CPU=1.0)
    child = pending(scene, driver, CPU=2.0)
    _, waiting = scene.run("wait", by=driver, CPU=1.0)
    waiting.gets(child)

    wait = scene.wait_of(child)

    assert computing.key in groups_of(wait)[0][1]
    assert waiting.key not in groups_of(wait)[0][1]


@pytest.mark.parametrize("resource", ["GPU", "custom"])
def test_a_task_that_waits_for_a_value_keeps_what_is_no_cpu(resource: str) -> None:
    scene = Scene()
    needs = {"CPU": 1.0, resource: 1.0}
    scene.node({"CPU": 1.0}, alive=True, **needs)
    driver = scene.driver()
    child = pending(scene, driver, **needs)
    _, waiting = scene.run("wait", driver, None, **needs)
    waiting.gets(child)

    wait = scene.wait_of(child)

    assert groups_of(wait) == [(1, [waiting.key])]
    assert scene.diagnose().verdict == "deadlock"


def test_a_task_that_joins_a_thread_keeps_its_cpu() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0)
    driver = scene.driver()
    _, worker = scene.run("wait", by=driver, CPU=1.0)
    worker.joins(worker.strand("helper", "user"))

    assert groups_of(scene.wait_of(pending(scene, driver, CPU=1.0))) == [(1, [worker.key])]


def test_who_runs_on_another_node_holds_nothing_here() -> None:
    scene = Scene()
    here, there = scene.node(free=NOTHING, GPU=1.0), scene.node(free=NOTHING, CPU=1.0, GPU=0.5)
    driver = scene.driver(there)
    _, holder = scene.run("train", by=driver, node=here, GPU=1.0)
    scene.run("train", by=driver, node=there, GPU=0.5)

    assert groups_of(scene.wait_of(pending(scene, driver, GPU=1.0))) == [(1, [holder.key])]


def test_a_dead_node_can_give_nothing() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=1.0))
    scene.node(GPU=1.0, alive=False)

    assert never(scene, pending(scene, driver, GPU=1.0).key) == "asks for 1 GPU, and no node has any GPU"


def test_what_cannot_be_accounted_for_is_held_by_somebody_unknown() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=2.0)
    driver = scene.driver()
    scene.run("compute", by=driver, CPU=1.0)

    wait = scene.wait_of(pending(scene, driver, CPU=1.0))

    assert labels(scene, wait) == ["compute", "CPU taken on node 10.0.0.1 by somebody who was not identified"]
    assert holders(scene, wait)[1].kind == "unknown"


def test_an_unknown_holder_keeps_a_circle_from_being_called_a_deadlock() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=2.0)
    driver = scene.driver()
    child = pending(scene, driver, GPU=1.0)
    _, waiting = scene.run("wait", by=driver, GPU=1.0)
    waiting.gets(child)

    assert scene.diagnose().verdict == "blocked"


def test_a_holder_whose_task_nobody_tells_of_is_unknown() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0)
    driver, other = scene.driver(), scene.driver()
    scene.run("compute", by=other, CPU=1.0)
    other.is_silent = True

    assert [holder.kind for holder in holders(scene, scene.wait_of(pending(scene, driver, CPU=1.0)))] == ["unknown"]


def test_free_but_not_placed_waits_for_the_scheduler() -> None:
    scene = Scene()
    scene.node(CPU=4.0)

    wait = scene.wait_of(pending(scene, scene.driver(), CPU=1.0))

    assert labels(scene, wait) == ["scheduler, though 1 CPU is free on node 10.0.0.1"]


def test_nothing_needed_is_free_everywhere() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0)

    wait = scene.wait_of(pending(scene, scene.driver()))

    assert labels(scene, wait) == ["scheduler, though nothing is free on node 10.0.0.1"]


def test_amounts_are_compared_in_units_that_ray_counts() -> None:
    scene = Scene()
    scene.node(free={"CPU": 0.3 - 1e-9}, CPU=1.0)

    wait = scene.wait_of(pending(scene, scene.driver(), CPU=0.1 + 0.2))

    assert "is free" in labels(scene, wait)[0]


def test_many_who_need_the_same_of_many_keep_the_graph_small() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=MANY + 1.0)
    driver = scene.driver()
    workers = [scene.run("compute", by=driver, CPU=1.0)[1] for _ in range(MANY + 1)]
    calls = [pending(scene, driver, CPU=1.0) for _ in range(100)]

    graph = scene.graph()

    waits = [wait for call in calls if (wait := graph[call.key].wait)]
    assert {len(wait.groups[0].targets) for wait in waits} == {1}
    assert {wait.resources for wait in waits} == {("CPU",)}
    assert (shared := graph[waits[0].groups[0].targets[0].vertex].wait) is not None
    assert groups_of(shared) == [(1, [worker.key for worker in workers])]


# What nobody can give


def test_a_resource_that_no_node_has_is_never_given() -> None:
    scene = Scene()

    assert never(scene, pending(scene, scene.driver(), TPU=1.0).key) == "asks for 1 TPU, and no node has any TPU"


def test_more_than_the_largest_node_has_is_never_given() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=4.0))
    scene.node(CPU=8.0)

    assert never(scene, pending(scene, driver, CPU=9.0).key) == "asks for 9 CPU, and the most a node has is 8 CPU"


def test_what_no_one_node_has_together_is_never_given() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=4.0))
    scene.node(GPU=4.0)

    reason = never(scene, pending(scene, driver, CPU=1.0, GPU=1.0).key)

    assert reason == "asks for 1 CPU and 1 GPU, and no one node has all of it"


def test_memory_is_told_in_gib() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(memory=2.0**30))

    reason = never(scene, pending(scene, driver, memory=2.0**33).key)

    assert reason == "asks for 8.0 GiB memory, and the most a node has is 1.0 GiB memory"


# What actors hold


def test_what_an_actor_holds_is_held_until_it_ends() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    actor = scene.actor("Trainer", name="left", required_resources={"GPU": 1.0})

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ['end of actor Trainer "left", which holds 1 GPU for life']
    (holder,) = holders(scene, wait)
    assert (holder.worker_id, holder.os_thread_id) == (actor.worker_id, actor.strands[0].tid)


def test_an_actor_that_waits_for_a_value_lends_nothing_back() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0)
    driver = scene.driver()
    actor = scene.actor("Trainer", required_resources={"CPU": 1.0})
    child = pending(scene, actor, CPU=1.0)
    actor.runs(scene.call(actor, "fit", by=driver)).gets(child)

    wait = scene.wait_of(child)

    assert [label.partition(",")[0] for label in labels(scene, wait)] == [
        f"end of actor Trainer {actor.actor_id[:8]}",
    ]


@pytest.mark.parametrize(
    "known",
    [{"state": "DEAD"}, {"node_id": "elsewhere"}, {"placement_group_id": "ab" * 18}, {"required_resources": {}}],
)
def test_actors_that_hold_nothing_of_a_node(known: dict[str, Any]) -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    scene.actor("Trainer", None, **{"required_resources": {"GPU": 1.0}} | known)

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ["GPU taken on node 10.0.0.1 by somebody who was not identified"]


# Placement groups


def bundle(node: Node | None = None, **resources: float) -> Bundle:
    return Bundle(resources=resources, node_id=node.node_id if node else None)


def test_what_a_placement_group_holds_is_held_until_it_is_removed() -> None:
    scene = Scene()
    node = scene.node(free=NOTHING, GPU=1.0)
    scene.group("CREATED", bundle(node, GPU=1.0), name="trainers")

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ["removal of placement group trainers, which holds 1 GPU"]


def test_a_task_waits_for_its_placement_group() -> None:
    scene = Scene()
    node = scene.node(free=NOTHING, CPU=1.0)
    driver = scene.driver()
    group = scene.group("PENDING", bundle(CPU=1.0))
    scene.run("compute", by=driver, node=node, CPU=1.0)
    call = pending(scene, driver, CPU=1.0).becomes(placement_group_id=group.placement_group_id)

    wait = scene.wait_of(call)

    assert wait.kind == "placement group"
    assert groups_of(wait) == [(1, [f"group:{group.placement_group_id}"])]


def test_a_task_in_a_placement_group_that_is_there_waits_for_room_in_it() -> None:
    scene = Scene()
    group = scene.group("CREATED", bundle(CPU=1.0), name="trainers")
    call = pending(scene, scene.driver(), CPU=1.0).becomes(placement_group_id=group.placement_group_id)

    assert labels(scene, scene.wait_of(call)) == ["room in placement group trainers"]


def test_a_pending_placement_group_waits_for_holders_or_for_room() -> None:
    scene = Scene()
    node = scene.node(free=NOTHING, CPU=2.0)
    driver = scene.driver()
    _, holder = scene.run("compute", by=driver, node=node, CPU=2.0)
    group = scene.group("PENDING", bundle(CPU=1.0), bundle(CPU=1.0), strategy="SPREAD")

    wait = scene.wait_of(group)

    assert wait.kind == "resources"
    assert wait.resources == ("CPU",)
    assert groups_of(wait)[0][1][0] == holder.key
    assert labels(scene, wait)[1:] == ["room for 2 bundles: 1 CPU, 1 CPU (SPREAD)"]


def test_an_infeasible_placement_group_is_never_placed() -> None:
    scene = Scene()
    group = scene.group("PENDING", bundle(CPU=64.0), scheduling_state="INFEASIBLE", name="large")

    reason = never(scene, f"group:{group.placement_group_id}")

    assert reason == "asks for 1 bundle: 64 CPU (PACK), and the cluster's nodes cannot hold that"


@pytest.mark.parametrize("state", ["CREATED", "REMOVED"])
def test_a_placement_group_that_does_not_wait_is_no_vertex(state: str) -> None:
    scene = Scene()
    group = scene.group(state, bundle(CPU=1.0))

    assert f"group:{group.placement_group_id}" not in scene.graph()
