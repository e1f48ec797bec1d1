"""Waits for resources, and their holders."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.graph.builder import MANY
from dstack.analysis.graph.resource_requests import labels_match
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.second_sample import plan_readings
from dstack.model.snapshot import Node, TaskTimes
from tests.unit.analysis.graph.resource_requests import NOTHING, holders, labels, never, pending
from tests.unit.scenes import Call, Scene, SceneProcess, groups_of

# Resources of running tasks


def test_a_task_waits_for_the_task_that_holds_its_resources() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    driver = scene.driver()
    _, holder = scene.run("train", by=driver, GPU=1.0)

    wait = scene.wait_of(pending(scene, driver, GPU=1.0))

    assert wait.kind == "resources"
    assert wait.resources == ("GPU",)
    assert groups_of(wait) == [(1, [holder.key])]


def test_any_holder_may_release_first() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=2.0)
    driver = scene.driver()
    workers = [scene.run("train", by=driver, CPU=1.0)[1] for _ in range(2)]

    wait = scene.wait_of(pending(scene, driver, CPU=1.0))

    assert groups_of(wait) == [(1, [worker.key for worker in workers])]
    assert wait.evidence == "inferred"


def test_the_smallest_sufficient_number_of_holders_must_release() -> None:
    scene = Scene()
    scene.node(free={"CPU": 1.0}, CPU=8.0)
    driver = scene.driver()
    workers = [scene.run("train", by=driver, CPU=amount)[1] for amount in (1.0, 4.0, 2.0)]

    wait = scene.wait_of(pending(scene, driver, CPU=6.0))

    assert groups_of(wait) == [(2, [workers[i].key for i in (1, 2, 0)])]


def test_all_missing_resources_of_a_node_must_be_freed() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0, GPU=1.0)
    driver = scene.driver()
    _, computing = scene.run("compute", by=driver, CPU=1.0)
    _, training = scene.run("train", by=driver, GPU=1.0)

    wait = scene.wait_of(pending(scene, driver, CPU=1.0, GPU=1.0))

    assert groups_of(wait) == [(1, [computing.key]), (1, [training.key])]
    assert wait.evidence == "exact"


def test_room_on_any_one_node_is_enough() -> None:
    scene = Scene()
    nodes = [scene.node(free=NOTHING, CPU=1.0, GPU=1.0) for _ in range(2)]
    driver = scene.driver(scene.node(TPU=1.0))
    held = [
        (scene.run("a", by=driver, node=node, CPU=1.0)[1], scene.run("b", by=driver, node=node, GPU=1.0)[1])
        for node in nodes
    ]

    wait = scene.wait_of(pending(scene, driver, CPU=1.0, GPU=1.0))
    rooms = holders(scene, wait)

    assert [describe(room) for room in rooms] == ["room on node 10.0.0.1", "room on node 10.0.0.2"]
    assert [groups_of(room.wait) for room in rooms if room.wait] == [[(1, [a.key]), (1, [b.key])] for a, b in held]


def test_a_task_waits_only_for_missing_resources() -> None:
    scene = Scene()
    scene.node(free={"CPU": 4.0}, CPU=5.0, GPU=1.0)
    driver = scene.driver()
    scene.run("compute", by=driver, CPU=1.0)
    _, holder = scene.run("train", by=driver, GPU=1.0)

    wait = scene.wait_of(pending(scene, driver, CPU=1.0, GPU=1.0))

    assert wait.resources == ("GPU",)
    assert groups_of(wait) == [(1, [holder.key])]


def test_a_task_may_be_placed_on_any_node_that_could_fit_it() -> None:
    scene = Scene()
    nodes = [scene.node(free=NOTHING, GPU=1.0), scene.node(free=NOTHING, GPU=2.0), scene.node(CPU=8.0)]
    driver = scene.driver(nodes[2])
    workers = [scene.run("train", by=driver, node=node, GPU=node.resources["GPU"])[1] for node in nodes[:2]]

    either, larger = pending(scene, driver, GPU=1.0), pending(scene, driver, GPU=2.0)

    assert groups_of(scene.wait_of(either)) == [(1, [worker.key for worker in workers])]
    assert groups_of(scene.wait_of(larger)) == [(1, [workers[1].key])]


def test_a_task_that_waits_for_a_value_releases_its_cpu() -> None:
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
def test_a_task_that_waits_for_a_value_keeps_other_resources(resource: str) -> None:
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
    worker.joins(worker.thread("helper", "user"))

    assert groups_of(scene.wait_of(pending(scene, driver, CPU=1.0))) == [(1, [worker.key])]


def test_a_task_on_another_node_holds_nothing_on_this_one() -> None:
    scene = Scene()
    here, there = scene.node(free=NOTHING, GPU=1.0), scene.node(free=NOTHING, CPU=1.0, GPU=0.5)
    driver = scene.driver(there)
    _, holder = scene.run("train", by=driver, node=here, GPU=1.0)
    scene.run("train", by=driver, node=there, GPU=0.5)

    assert groups_of(scene.wait_of(pending(scene, driver, GPU=1.0))) == [(1, [holder.key])]


def test_a_dead_node_has_no_resources() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=1.0))
    scene.node(GPU=1.0, alive=False)

    assert never(scene, pending(scene, driver, GPU=1.0).key) == "asks for 1 GPU, but no node has any GPU"


def test_unaccounted_resources_have_an_unknown_holder() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=2.0)
    driver = scene.driver()
    scene.run("compute", by=driver, CPU=1.0)

    wait = scene.wait_of(pending(scene, driver, CPU=1.0))

    assert labels(scene, wait) == ["compute", "unidentified holder of 1 CPU on node 10.0.0.1"]
    assert holders(scene, wait)[1].kind == "unknown"


def test_a_cycle_with_an_unknown_holder_is_no_deadlock() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=2.0)
    driver = scene.driver()
    child = pending(scene, driver, GPU=1.0)
    _, waiting = scene.run("wait", by=driver, GPU=1.0)
    waiting.gets(child)

    assert scene.diagnose().verdict == "running"


def test_a_holder_with_an_unlisted_task_is_unknown() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0)
    driver, other = scene.driver(), scene.driver()
    scene.run("compute", by=other, CPU=1.0)
    other.is_unreachable = True

    assert [holder.kind for holder in holders(scene, scene.wait_of(pending(scene, driver, CPU=1.0)))] == ["unknown"]


def test_an_unplaced_task_with_free_resources_in_both_samples_is_an_anomaly() -> None:
    scene = Scene()
    scene.node(CPU=4.0)
    call = pending(scene, scene.driver(), CPU=1.0)

    once = labels(scene, scene.sample().wait_of(call))
    scene.sample()
    twice = labels(scene, scene.wait_of(call))

    assert once == ["scheduler, which has not placed 1 CPU"]
    assert twice == ["scheduler, which has not placed 1 CPU: it is free on node 10.0.0.1, and Ray does not say why"]


def test_apparently_free_resources_are_sampled_again() -> None:
    scene = Scene()
    scene.node(CPU=4.0)
    driver = scene.driver()
    pending(scene, driver, CPU=1.0)

    assert plan_readings(scene.snapshot()).workers == {driver.worker_id}


def test_a_task_without_requirements_waits_for_the_scheduler() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0)

    wait = scene.wait_of(pending(scene, scene.driver()))

    assert labels(scene, wait) == ["scheduler, which has not placed it"]


def test_amounts_are_compared_in_rays_smallest_unit() -> None:
    scene = Scene()
    scene.node(free={"CPU": 0.3 - 1e-9}, CPU=1.0)

    wait = scene.wait_of(pending(scene, scene.driver(), CPU=0.1 + 0.2))

    assert labels(scene, wait) == ["scheduler, which has not placed 0.3 CPU"]


def test_many_equal_requests_with_many_holders_keep_the_graph_small() -> None:
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
    assert groups_of(shared) == [(1, sorted((worker.key for worker in workers), key=str))]


# Infeasible requests


def test_a_resource_that_no_node_has_is_infeasible() -> None:
    scene = Scene()

    assert never(scene, pending(scene, scene.driver(), TPU=1.0).key) == "asks for 1 TPU, but no node has any TPU"


def test_more_than_the_largest_node_has_is_infeasible() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=4.0))
    scene.node(CPU=8.0)

    assert never(scene, pending(scene, driver, CPU=9.0).key) == "asks for 9 CPU, but the most a node has is 8 CPU"


def test_a_combination_that_no_single_node_has_is_infeasible() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=4.0))
    scene.node(GPU=4.0)

    reason = never(scene, pending(scene, driver, CPU=1.0, GPU=1.0).key)

    assert reason == "asks for 1 CPU and 1 GPU, but no single node has all of it"


def test_memory_is_shown_in_gib() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(memory=2.0**30))

    reason = never(scene, pending(scene, driver, memory=2.0**33).key)

    assert reason == "asks for 8.0 GiB memory, but the most a node has is 1.0 GiB memory"


# Resources of actors


def test_an_actor_holds_its_resources_until_it_ends() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    actor = scene.actor("Trainer", name="left", required_resources={"GPU": 1.0})

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ['end of actor Trainer "left", which holds 1 GPU']
    (holder,) = holders(scene, wait)
    assert (holder.worker_id, holder.os_thread_id) == (actor.worker_id, actor.threads[0].tid)


def test_an_actor_that_waits_for_a_value_releases_nothing() -> None:
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
    [{"state": "DEAD"}, {"node_id": "elsewhere"}, {"required_resources": {}}],
)
def test_actors_that_hold_nothing_of_a_node(known: dict[str, Any]) -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    scene.actor("Trainer", None, **{"required_resources": {"GPU": 1.0}} | known)

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ["unidentified holder of 1 GPU on node 10.0.0.1"]


# An autoscaler


def test_an_autoscaler_may_add_a_missing_resource() -> None:
    scene = Scene()
    scene.autoscaler = "autoscaler"
    call = pending(scene, scene.driver(), TPU=1.0)

    assert labels(scene, scene.wait_of(call)) == ["autoscaler, which may add a node"]
    assert scene.diagnose().findings[0].kind == "starved"


def test_a_cycle_over_resources_is_no_deadlock_with_an_autoscaler() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    scene.autoscaler = "autoscaler"
    driver = scene.driver()
    child = pending(scene, driver, GPU=1.0)
    _, waiting = scene.run("wait", by=driver, GPU=1.0)
    waiting.gets(child)

    assert labels(scene, scene.wait_of(child)) == ["wait", "autoscaler, which may add a node"]
    assert [finding.kind for finding in scene.diagnose().findings] == ["starved"]


@pytest.mark.parametrize(
    ("selector", "is_there"),
    [
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "in(a, b)"}, True),
        ({"zone": "!in(a,b)"}, False),
        ({"rack": "!1"}, True),
        ({"rack": "1"}, False),
        ({"zone": "a", "rack": "1"}, False),
    ],
)
def test_label_selectors(selector: dict[str, str], is_there: bool) -> None:
    assert labels_match(selector, {"zone": "a"}) is is_there


def test_an_actor_that_asks_for_absent_labels_is_infeasible() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, creation = scene.pending_actor("Trainer", by=driver, CPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    scene.actors[-1] = replace(actor, label_selector={"zone": "b"})

    assert never(scene, creation.key) == "asks for 1 CPU, but no node with that has the labels zone: b"


def test_a_fallback_strategy_lets_an_actor_wait_for_other_nodes() -> None:
    scene = Scene()
    scene.nodes[0:] = [replace(scene.node(free=NOTHING, CPU=1.0), labels={"zone": "a"})]
    driver = scene.driver(scene.nodes[0])
    _, holder = scene.run("compute", by=driver, CPU=1.0)
    actor, creation = scene.pending_actor("Trainer", driver, CPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    actor = scene.becomes(actor, label_selector={"zone": "b"}, fallback_labels=({"zone": "a"},))

    assert groups_of(scene.wait_of(creation)) == [(1, [holder.key])]
    scene.becomes(actor, fallback_labels=({"zone": "c"},))
    assert never(scene, creation.key) == "asks for 1 CPU, but no node with that has the labels zone: b or zone: c"


def test_the_task_events_have_the_labels_of_a_task() -> None:
    scene = Scene()
    scene.node(CPU=1.0)
    call = pending(scene, scene.driver(), CPU=1.0)
    times = {call.task.task_id: TaskTimes(label_options=({"zone": "b"}, {"zone": "c"}))}

    (finding,) = diagnose(replace(scene.sample().sample().snapshot(), task_times=times)).findings

    assert finding.summary.endswith("it asks for 1 CPU, but no node with that has the labels zone: b or zone: c")
    assert "(zone: b or zone: c)" in str(finding.advice)


# A node that a request stays on


def queued_actor(scene: Scene, node: Node | None) -> tuple[SceneProcess, Call]:
    """An actor that waits in its call for another, whose request is queued on the node that it has itself."""
    nodes = [scene.node(free={"CPU": 1.0}, CPU=2.0), scene.node(CPU=2.0)]
    driver = scene.driver(nodes[1])
    parent = scene.actor("Parent", nodes[0], held={"CPU": 1.0})
    go = scene.call(parent, "go", by=driver)
    driver.gets(go)
    actor, creation = scene.pending_actor("Child", parent, CPU=2.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    call = scene.call(actor, "ping", by=parent)
    call.becomes(state="PENDING_NODE_ASSIGNMENT")
    parent.runs(go).gets(call)
    scene.becomes(actor, node_id=node.node_id if node else nodes[0].node_id)
    return parent, creation


def test_a_request_for_an_actor_that_stays_on_a_full_node_waits_for_its_holders() -> None:
    scene = Scene()
    parent, creation = queued_actor(scene, None)

    wait = scene.sample().second_sample().wait_of(creation)
    (finding,) = scene.diagnose().findings

    assert parent.actor is not None
    assert labels(scene, wait) == [f"end of actor Parent {parent.actor.actor_id[:8]}, which holds 1 CPU"]
    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    (assumed,) = finding.assumed
    assert assumed.endswith("stays on node 10.0.0.1, where Ray queues it, as one with an affinity to that node")


def test_a_request_on_a_node_with_room_waits_for_the_scheduler() -> None:
    scene = Scene()
    other = scene.node(CPU=2.0)
    _, creation = queued_actor(scene, other)

    assert scene.sample().second_sample().diagnose().verdict == "running"
    assert labels(scene, scene.wait_of(creation)) == [
        "scheduler, which has not placed 2 CPU: it is free on node 10.0.0.1, and Ray does not say why"
    ]
