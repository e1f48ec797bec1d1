"""Who waits for which resources, and who holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import plan_readings
from dstack.analysis.graph.builder import MANY
from dstack.analysis.graph.resources.label_selectors import match as labels_match
from dstack.analysis.graph.resources.placement_groups import cannot_hold
from dstack.diagnosis import Vertex, Wait
from dstack.model import Bundle, Node
from dstack.vertex_keys import GroupKey, Key
from tests.unit.scenes import Call, Scene, SceneProcess, groups_of

NOTHING: Mapping[str, float] = {}


def pending(scene: Scene, by: SceneProcess, **needs: float) -> Call:
    """A task that has no node yet."""
    return scene.task("wanting", by=by, state="PENDING_NODE_ASSIGNMENT", required_resources=needs)


def holders(scene: Scene, wait: Wait) -> list[Vertex]:
    graph = scene.graph()
    return [graph[target.vertex] for group in wait.groups for target in group.targets]


def labels(scene: Scene, wait: Wait) -> list[str]:
    return [vertex.label for vertex in holders(scene, wait)]


def never(scene: Scene, key: Key) -> str | None:
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

    wait = scene.wait_of(pending(scene, driver, CPU=1.0))

    assert groups_of(wait) == [(1, [worker.key for worker in workers])]
    assert wait.evidence == "inferred"


def test_as_many_holders_must_let_go_as_it_takes_at_least() -> None:
    scene = Scene()
    scene.node(free={"CPU": 1.0}, CPU=8.0)
    driver = scene.driver()
    workers = [scene.run("train", by=driver, CPU=amount)[1] for amount in (1.0, 4.0, 2.0)]

    wait = scene.wait_of(pending(scene, driver, CPU=6.0))

    assert groups_of(wait) == [(2, [workers[i].key for i in (1, 2, 0)])]


def test_all_that_is_missing_on_a_node_must_be_freed() -> None:
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

    assert [room.label for room in rooms] == ["room on node 10.0.0.1", "room on node 10.0.0.2"]
    assert [groups_of(room.wait) for room in rooms if room.wait] == [[(1, [a.key]), (1, [b.key])] for a, b in held]


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
    worker.joins(worker.thread("helper", "user"))

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

    assert never(scene, pending(scene, driver, GPU=1.0).key) == "asks for 1 GPU, but no node has any GPU"


def test_what_cannot_be_accounted_for_is_held_by_somebody_unknown() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=2.0)
    driver = scene.driver()
    scene.run("compute", by=driver, CPU=1.0)

    wait = scene.wait_of(pending(scene, driver, CPU=1.0))

    assert labels(scene, wait) == ["compute", "unidentified holder of 1 CPU on node 10.0.0.1"]
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
    other.is_unreachable = True

    assert [holder.kind for holder in holders(scene, scene.wait_of(pending(scene, driver, CPU=1.0)))] == ["unknown"]


def test_free_but_not_placed_is_an_anomaly_once_seen_twice() -> None:
    scene = Scene()
    scene.node(CPU=4.0)
    call = pending(scene, scene.driver(), CPU=1.0)

    once = labels(scene, scene.sample().wait_of(call))
    scene.sample()
    twice = labels(scene, scene.wait_of(call))

    assert once == ["scheduler, which has not placed 1 CPU"]
    assert twice == ["scheduler, which has not placed 1 CPU although it is free on node 10.0.0.1"]


def test_what_seems_free_is_looked_at_again() -> None:
    scene = Scene()
    scene.node(CPU=4.0)
    driver = scene.driver()
    pending(scene, driver, CPU=1.0)

    assert plan_readings(scene.snapshot()).workers == {driver.worker_id}


def test_who_asks_for_nothing_has_not_been_placed_yet() -> None:
    scene = Scene()
    scene.node(free=NOTHING, CPU=1.0)

    wait = scene.wait_of(pending(scene, scene.driver()))

    assert labels(scene, wait) == ["scheduler, which has not placed it"]


def test_amounts_are_compared_in_units_that_ray_counts() -> None:
    scene = Scene()
    scene.node(free={"CPU": 0.3 - 1e-9}, CPU=1.0)

    wait = scene.wait_of(pending(scene, scene.driver(), CPU=0.1 + 0.2))

    assert labels(scene, wait) == ["scheduler, which has not placed 0.3 CPU"]


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
    assert groups_of(shared) == [(1, sorted((worker.key for worker in workers), key=str))]


# What nobody can give


def test_a_resource_that_no_node_has_is_never_given() -> None:
    scene = Scene()

    assert never(scene, pending(scene, scene.driver(), TPU=1.0).key) == "asks for 1 TPU, but no node has any TPU"


def test_more_than_the_largest_node_has_is_never_given() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=4.0))
    scene.node(CPU=8.0)

    assert never(scene, pending(scene, driver, CPU=9.0).key) == "asks for 9 CPU, but the most a node has is 8 CPU"


def test_what_no_one_node_has_together_is_never_given() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=4.0))
    scene.node(GPU=4.0)

    reason = never(scene, pending(scene, driver, CPU=1.0, GPU=1.0).key)

    assert reason == "asks for 1 CPU and 1 GPU, but no single node has all of it"


def test_memory_is_told_in_gib() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(memory=2.0**30))

    reason = never(scene, pending(scene, driver, memory=2.0**33).key)

    assert reason == "asks for 8.0 GiB memory, but the most a node has is 1.0 GiB memory"


# What actors hold


def test_what_an_actor_holds_is_held_until_it_ends() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    actor = scene.actor("Trainer", name="left", required_resources={"GPU": 1.0})

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ['end of actor Trainer "left", which holds 1 GPU']
    (holder,) = holders(scene, wait)
    assert (holder.worker_id, holder.os_thread_id) == (actor.worker_id, actor.threads[0].tid)


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
    [{"state": "DEAD"}, {"node_id": "elsewhere"}, {"required_resources": {}}],
)
def test_actors_that_hold_nothing_of_a_node(known: dict[str, Any]) -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    scene.actor("Trainer", None, **{"required_resources": {"GPU": 1.0}} | known)

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ["unidentified holder of 1 GPU on node 10.0.0.1"]


# Placement groups


def bundle(node: Node | None = None, **resources: float) -> Bundle:
    return Bundle(resources=resources, node_id=node.node_id if node else None)


def test_what_a_placement_group_holds_is_held_until_it_is_removed() -> None:
    scene = Scene()
    node = scene.node(free=NOTHING, GPU=1.0)
    scene.group("CREATED", bundle(node, GPU=1.0), name="trainers")

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ["removal of placement group trainers, which holds 1 bundle: 1 GPU"]


def test_a_task_waits_for_its_placement_group() -> None:
    scene = Scene()
    node = scene.node(free=NOTHING, CPU=1.0)
    driver = scene.driver()
    group = scene.group("PENDING", bundle(CPU=1.0))
    scene.run("compute", by=driver, node=node, CPU=1.0)
    call = pending(scene, driver, CPU=1.0).becomes(placement_group_id=group.placement_group_id)

    wait = scene.wait_of(call)

    assert wait.kind == "placement group"
    assert groups_of(wait) == [(1, [GroupKey(group.placement_group_id)])]


def test_a_task_waits_for_its_placement_group_whose_resources_it_asks_for() -> None:
    scene = Scene()
    group = scene.group("PENDING", bundle(CPU=1.0))
    call = scene.task(
        "wanting",
        by=scene.driver(),
        state="PENDING_NODE_ASSIGNMENT",
        required_resources={f"CPU_group_0_{group.placement_group_id}": 1.0},
    )

    assert groups_of(scene.wait_of(call)) == [(1, [GroupKey(group.placement_group_id)])]


class InGroup:
    """A placement group of one bundle with one CPU, on the only node."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.node = self.scene.node(free=NOTHING, CPU=1.0)
        self.driver = self.scene.driver()
        self.group = self.scene.group("CREATED", bundle(self.node, CPU=1.0), name="trainers")
        self.total = {**self.node.resources, **self.needs(bundle=0)}
        self.scene.total[self.node.node_id] = self.total
        markers = {name: 999.0 for name in self.total if name.startswith("bundle_group")}
        self.scene.available[self.node.node_id] = markers

    def needs(self, bundle: int | None = None) -> dict[str, float]:
        """What a task needs that asks for a CPU of a bundle or of any."""
        group = self.group.placement_group_id
        certain = {} if bundle is None else {f"CPU_group_{bundle}_{group}": 1.0, f"bundle_group_{bundle}_{group}": 1e-3}
        return {f"CPU_group_{group}": 1.0, f"bundle_group_{group}": 1e-3, **certain}

    def pending(self, bundle: int | None = None) -> Call:
        return self.scene.task(
            "wanting", by=self.driver, state="PENDING_NODE_ASSIGNMENT", required_resources=self.needs(bundle)
        )


@pytest.mark.parametrize("bundle", [0, None])
def test_a_bundle_is_held_by_the_actor_in_it(bundle: int | None) -> None:
    inside = InGroup()
    actor = inside.scene.actor("Trial", name="t", held=inside.needs(bundle=0))
    call = inside.pending(bundle)

    wait = inside.scene.wait_of(call)

    assert wait.resources == ("CPU",)
    assert labels(inside.scene, wait) == ['end of actor Trial "t", which holds 1 CPU']
    assert actor.actor is not None


def test_a_task_that_asked_for_any_bundle_holds_the_one_it_got() -> None:
    inside = InGroup()
    call = inside.pending()
    worker = inside.scene.worker().runs(call)
    call.becomes(state="SUBMITTED_TO_WORKER")
    worker.held = inside.needs(bundle=0)

    wait = inside.scene.wait_of(inside.pending(bundle=0))

    assert groups_of(wait)[0] == (1, [worker.key])


def test_the_cpu_of_a_bundle_is_lent_too() -> None:
    inside = InGroup()
    call = inside.pending(bundle=0)
    worker = inside.scene.worker().runs(call)
    child = inside.pending(bundle=0)
    call.becomes(state="SUBMITTED_TO_WORKER")
    worker.gets(child)

    wait = inside.scene.wait_of(child)

    assert worker.key not in groups_of(wait)[0][1]
    assert inside.scene.diagnose().verdict == "blocked"


def test_more_than_a_bundle_has_is_never_given() -> None:
    inside = InGroup()
    call = inside.pending(bundle=0)
    call.becomes(required_resources={name: 2 * amount for name, amount in inside.needs(bundle=0).items()})

    reason = never(inside.scene, call.key)

    assert reason == "asks for 2 CPU in bundle 0 of placement group trainers, but no bundle has that much"


def test_a_placement_group_whose_resources_no_node_shows_yet_is_not_called_too_small() -> None:
    inside = InGroup()
    inside.scene.total.clear()

    wait = inside.scene.wait_of(inside.pending(bundle=0))

    assert labels(inside.scene, wait) == ["room for 1 CPU in bundle 0 of placement group trainers"]


def test_a_pending_placement_group_waits_for_room_for_each_bundle() -> None:
    scene = Scene()
    node = scene.node(free={"GPU": 1.0}, CPU=2.0, GPU=1.0)
    driver = scene.driver()
    _, holder = scene.run("compute", by=driver, node=node, CPU=2.0)
    group = scene.group("PENDING", bundle(CPU=1.0), bundle(GPU=1.0), bundle(CPU=1.0), strategy="SPREAD")

    wait = scene.wait_of(group)

    assert wait.kind == "resources"
    assert wait.resources == ("CPU",)
    assert groups_of(wait) == [(1, [holder.key])]


def test_bundles_that_only_do_not_fit_together_wait_for_any_holder() -> None:
    scene = Scene()
    nodes = [scene.node(free={"CPU": 1.0}, CPU=2.0), scene.node(free=NOTHING, CPU=1.0)]
    driver = scene.driver()
    workers = [scene.run("compute", by=driver, node=node, CPU=1.0)[1] for node in nodes]
    group = scene.group("PENDING", bundle(CPU=1.0), bundle(CPU=1.0))

    assert groups_of(scene.wait_of(group)) == [(1, [worker.key for worker in workers])]


def test_bundles_for_which_there_may_be_room_wait_for_the_scheduler() -> None:
    scene = Scene()
    scene.node(free={"CPU": 2.0}, CPU=4.0)
    group = scene.group("PENDING", bundle(CPU=1.0), bundle(CPU=1.0))

    assert "scheduler, which has not placed" in labels(scene, scene.wait_of(group))[0]


@pytest.mark.parametrize(
    ("strategy", "amounts", "reason"),
    [
        ("PACK", [64.0], "no node can hold 64 CPU"),
        ("STRICT_PACK", [2.0, 3.0], "no single node can hold all of it"),
        ("PACK", [4.0, 3.0, 1.0], "all nodes together have 7 CPU"),
        ("SPREAD", [2.0, 2.0, 2.0, 1.0], None),
        ("PACK", [3.0, 3.0, 1.0], None),
        ("SPREAD", [1.5] * 5, "all nodes together have 7 CPU"),
        ("SPREAD", [1.7] * 4, "there is room for 3 of them"),
        ("STRICT_SPREAD", [1.0, 1.0, 1.0], "there are 2 nodes for 3 bundles"),
        ("STRICT_SPREAD", [4.0, 4.0], "only 1 of them fit on different nodes"),
        ("STRICT_SPREAD", [4.0, 3.0], None),
    ],
)
def test_what_all_nodes_can_never_hold(strategy: str, amounts: list[float], reason: str | None) -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 3.0}]

    assert cannot_hold(strategy, [{"CPU": amount} for amount in amounts], nodes) == reason


def test_an_infeasible_placement_group_is_never_placed() -> None:
    scene = Scene()
    scene.node(CPU=4.0)
    group = scene.group("PENDING", bundle(CPU=1.0), scheduling_state="INFEASIBLE", name="large")

    reason = never(scene, GroupKey(group.placement_group_id))

    assert reason == "asks for 1 bundle: 1 CPU (PACK), but the nodes of the cluster cannot hold it"


# Labels


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


def test_an_actor_that_asks_for_labels_that_no_node_has_is_never_created() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, creation = scene.pending_actor("Trainer", by=driver, CPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    scene.actors[-1] = replace(actor, label_selector={"zone": "b"})

    assert never(scene, creation.key) == "asks for 1 CPU, but no node with that has the labels zone: b"


# An autoscaler


def test_an_autoscaler_may_give_what_no_node_has() -> None:
    scene = Scene()
    scene.autoscaler = "autoscaler"
    call = pending(scene, scene.driver(), TPU=1.0)

    assert labels(scene, scene.wait_of(call)) == ["autoscaler, which may add a node"]
    assert scene.diagnose().findings[0].kind == "starved"


def test_an_autoscaler_keeps_a_circle_from_being_called_a_deadlock() -> None:
    scene = Scene()
    scene.node(free=NOTHING, GPU=1.0)
    scene.autoscaler = "autoscaler"
    driver = scene.driver()
    child = pending(scene, driver, GPU=1.0)
    _, waiting = scene.run("wait", by=driver, GPU=1.0)
    waiting.gets(child)

    assert labels(scene, scene.wait_of(child)) == ["wait", "autoscaler, which may add a node"]
    assert [finding.kind for finding in scene.diagnose().findings] == ["starved"]


def test_an_autoscaler_may_give_a_placement_group_its_nodes() -> None:
    scene = Scene()
    scene.autoscaler = "autoscaler"
    group = scene.group("PENDING", bundle(CPU=64.0), scheduling_state="INFEASIBLE")

    assert labels(scene, scene.wait_of(group)) == ["autoscaler, which may add a node"]


@pytest.mark.parametrize("state", ["CREATED", "REMOVED"])
def test_a_placement_group_that_does_not_wait_is_no_vertex(state: str) -> None:
    scene = Scene()
    group = scene.group(state, bundle(CPU=1.0))

    assert GroupKey(group.placement_group_id) not in scene.graph()
