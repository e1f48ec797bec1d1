"""Waits for placement groups, and for the resources of their bundles."""

from __future__ import annotations

import pytest

from dstack.analysis.graph.resource_requests import cannot_hold
from dstack.analysis.naming.descriptions import in_words
from dstack.model.snapshot import Bundle, Node
from dstack.model.vertex_keys import GroupKey
from tests.unit.analysis.graph.resource_requests import NOTHING, labels, never, pending
from tests.unit.scenes import Call, Scene, groups_of


def bundle(node: Node | None = None, **resources: float) -> Bundle:
    return Bundle(resources=resources, node_id=node.node_id if node else None)


def test_a_placement_group_holds_its_resources_until_it_is_removed() -> None:
    scene = Scene()
    node = scene.node(free=NOTHING, GPU=1.0)
    scene.group("CREATED", bundle(node, GPU=1.0), name="trainers")

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == ["removal of placement group trainers, which holds 1 bundle: 1 GPU"]


def test_a_placement_group_of_a_library_is_named_by_what_it_is_for() -> None:
    scene = Scene()
    node = scene.node(free=NOTHING, GPU=2.0)
    controller = scene.actor("TrainController")
    assert controller.actor is not None
    made = scene.group("CREATED", bundle(node, GPU=1.0), creator_actor_id=controller.actor.actor_id)
    other = scene.group("CREATED", bundle(node, GPU=1.0))
    trial = scene.actor("ImplicitFunc", placement_group_id=other.placement_group_id)
    assert trial.actor is not None

    wait = scene.wait_of(pending(scene, scene.driver(), GPU=1.0))

    assert labels(scene, wait) == [
        f"removal of placement group {made.placement_group_id[:8]} of Train's worker group, "
        "which holds 1 bundle: 1 GPU",
        f"removal of placement group {other.placement_group_id[:8]} of Tune trial {trial.actor.actor_id[:8]}, "
        "which holds 1 bundle: 1 GPU",
    ]


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


def test_a_task_that_asks_for_group_resources_waits_for_the_group() -> None:
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
        """The resources of a task that asks for a CPU of this bundle, or of any."""
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


def test_a_task_that_asked_for_any_bundle_holds_one() -> None:
    inside = InGroup()
    call = inside.pending()
    worker = inside.scene.worker().runs(call)
    call.becomes(state="SUBMITTED_TO_WORKER")
    worker.held = inside.needs(bundle=0)

    wait = inside.scene.wait_of(inside.pending(bundle=0))

    assert groups_of(wait)[0] == (1, [worker.key])


def test_the_cpu_of_a_bundle_is_released_too() -> None:
    inside = InGroup()
    call = inside.pending(bundle=0)
    worker = inside.scene.worker().runs(call)
    child = inside.pending(bundle=0)
    call.becomes(state="SUBMITTED_TO_WORKER")
    worker.gets(child)

    wait = inside.scene.wait_of(child)

    assert worker.key not in groups_of(wait)[0][1]
    assert inside.scene.diagnose().verdict == "running"


def test_more_than_a_bundle_has_is_infeasible() -> None:
    inside = InGroup()
    call = inside.pending(bundle=0)
    call.becomes(required_resources={name: 2 * amount for name, amount in inside.needs(bundle=0).items()})

    reason = never(inside.scene, call.key)

    assert reason == "asks for 2 CPU in bundle 0 of placement group trainers, but no bundle has that much"


def test_a_placement_group_without_reported_resources_may_be_large_enough() -> None:
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


def test_bundles_that_fit_one_by_one_wait_for_any_holder() -> None:
    scene = Scene()
    nodes = [scene.node(free={"CPU": 1.0}, CPU=2.0), scene.node(free=NOTHING, CPU=1.0)]
    driver = scene.driver()
    workers = [scene.run("compute", by=driver, node=node, CPU=1.0)[1] for node in nodes]
    group = scene.group("PENDING", bundle(CPU=1.0), bundle(CPU=1.0))

    assert groups_of(scene.wait_of(group)) == [(1, [worker.key for worker in workers])]


def test_bundles_that_may_fit_wait_for_the_scheduler() -> None:
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
def test_bundles_that_exceed_all_nodes(strategy: str, amounts: list[float], reason: str | None) -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 3.0}]

    found = cannot_hold(strategy, [{"CPU": amount} for amount in amounts], nodes)
    assert (in_words(found) if found else None) == reason


def test_an_infeasible_placement_group_never_becomes_ready() -> None:
    scene = Scene()
    scene.node(CPU=4.0)
    group = scene.group("PENDING", bundle(CPU=1.0), scheduling_state="INFEASIBLE", name="large")

    reason = never(scene, GroupKey(group.placement_group_id))

    assert reason == "asks for 1 bundle: 1 CPU (PACK), but the nodes of the cluster cannot hold it"


def test_an_autoscaler_may_add_nodes_for_a_placement_group() -> None:
    scene = Scene()
    scene.autoscaler = "autoscaler"
    group = scene.group("PENDING", bundle(CPU=64.0), scheduling_state="INFEASIBLE")

    assert labels(scene, scene.wait_of(group)) == ["autoscaler, which may add a node"]


@pytest.mark.parametrize("state", ["CREATED", "REMOVED"])
def test_a_created_placement_group_is_no_vertex(state: str) -> None:
    scene = Scene()
    group = scene.group(state, bundle(CPU=1.0))

    assert GroupKey(group.placement_group_id) not in scene.graph()
