"""Workers in groups and in the order of a column."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.inventory import ClusterInventory
from dstack.analysis.views.worker_groups import BY_NODE, Column, Order, WorkerGroup, WorkerGrouping, WorkerGroups
from dstack.analysis.views.worker_state import FIGURES, GPU, GPU_MEMORY, MEMORY, QUEUED, THREADS, Total
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Bundle, Snapshot
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.scenes import TAKEN_AT, Scene, SceneProcess
from tests.unit.support.random_snapshots import related_snapshots

BY_CLASS, BY_PLACEMENT_GROUP = WorkerGrouping("class"), WorkerGrouping("placement group")
ALL_WORKERS = WorkerGrouping("all")


class Farm(Scene):
    """Two nodes, a placement group with two of three bundles in use, labels, and workers of several classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.back = self.node(CPU=4.0), self.node(CPU=4.0)
        self.nodes[0] = self.head = replace(self.head, labels={"zone": "a", "ray.io/node-id": self.head.node_id})
        self.driver_ = self.driver(self.head)
        bundles = (Bundle(resources={"CPU": 1.0}, node_id=self.head.node_id),) * 2
        self.trainers_group = self.group("CREATED", *bundles, Bundle(resources={"CPU": 2.0}), name="trainers")
        id_ = self.trainers_group.placement_group_id
        self.trainers = [self.actor("Trainer", self.head) for _ in range(3)]
        for bundle, trainer in enumerate(self.trainers[:2]):
            trainer.held = {f"CPU_group_{bundle}_{id_}": 1.0, f"CPU_group_{id_}": 1.0}
        self.trainers[2].held = {f"CPU_group_{id_}": 1.0}
        self.available[self.head.node_id][f"CPU_group_0_{id_}"] = 0.25
        _, self.loader = self.run("load", by=self.driver_, node=self.back)
        self.idle = self.worker(self.back)
        self.idle.held = {f"CPU_group_1_{id_}": 1.0}
        self.trainers[0].known = {"labels": {"stage": "rollout"}, "rss_bytes": 10, "num_threads": 3}
        self.trainers[1].known = {"labels": {"stage": "train"}, "rss_bytes": 30, "num_threads": 2}
        self.loader.known = {"rss_bytes": 20, "num_threads": 1, "started_at": TAKEN_AT - 5}

    def grouped(self, grouping: WorkerGrouping, order: Order | None = None) -> tuple[WorkerGroup, ...]:
        return groups_of(self.snapshot()).groups(grouping, order or Order())


def groups_of(snapshot: Snapshot) -> WorkerGroups:
    index = SampleIndex(snapshot, snapshot.samples[0])
    return WorkerGroups(index, ClusterInventory(index, diagnose(snapshot)))


def ids(*procs: SceneProcess) -> set[str]:
    return {proc.worker_id for proc in procs}


def members(group: WorkerGroup) -> set[str]:
    return {worker.worker_id for worker in group.workers}


def test_all_groupings_of_a_snapshot_are_offered() -> None:
    assert groups_of(Farm().snapshot()).groupings() == (
        BY_NODE,
        BY_CLASS,
        BY_PLACEMENT_GROUP,
        WorkerGrouping("node label", "zone"),
        WorkerGrouping("label", "stage"),
        ALL_WORKERS,
    )
    assert [grouping.words for grouping in groups_of(Farm().snapshot()).groupings()] == [
        "by node",
        "by class",
        "by placement group",
        "by node label zone",
        "by label stage",
        "not grouped",
    ]


def test_workers_are_grouped_by_what_they_run() -> None:
    farm = Farm()
    found = {group.title: members(group) for group in farm.grouped(BY_CLASS)}

    assert found == {
        "actor Trainer": ids(*farm.trainers),
        "driver train.py": ids(farm.driver_),
        "task load": ids(farm.loader),
        "worker": ids(farm.idle),
    }


def test_a_placement_group_has_its_bundles_with_their_nodes_amounts_and_workers() -> None:
    farm = Farm()
    group, others = farm.grouped(BY_PLACEMENT_GROUP)

    assert "trainers" in group.title
    assert members(group) == ids(*farm.trainers)
    assert [(bundle.node, {one.worker_id for one in bundle.workers}) for bundle in group.bundles] == [
        (farm.head, ids(farm.trainers[0])),
        (farm.head, ids(farm.trainers[1])),
        (None, set()),
    ]
    assert [amount.words for amount in group.bundles[0].amounts] == ["CPU 0.75 of 1 used, 0.25 free"]
    assert [amount.words for amount in group.bundles[2].amounts] == ["CPU 2, use unknown"]
    assert {one.worker_id for one in group.outside_bundles} == ids(farm.trainers[2])
    assert others.title == "no placement group"
    assert members(others) == ids(farm.driver_, farm.loader, farm.idle)  # what an idle worker held says nothing


def test_labels_of_nodes_and_of_programs_are_groups() -> None:
    farm = Farm()
    by_zone = {group.title: members(group) for group in farm.grouped(WorkerGrouping("node label", "zone"))}
    by_stage = farm.grouped(WorkerGrouping("label", "stage"))

    assert by_zone == {"zone=a": ids(farm.driver_, *farm.trainers), "no zone": ids(farm.loader, farm.idle)}
    assert [group.title for group in by_stage] == ["stage=rollout", "stage=train", "no stage"]


def test_workers_are_sorted_by_a_figure_with_unknown_ones_last() -> None:
    farm = Farm()
    snapshot = farm.snapshot()
    groups = groups_of(snapshot)

    def first_three(order: Order) -> list[str]:
        found = groups.workers(snapshot.workers, order)
        assert {one.worker.worker_id for one in found} == {worker.worker_id for worker in snapshot.workers}
        return [one.worker.worker_id for one in found[:3]]

    largest = [farm.trainers[1].worker_id, farm.loader.worker_id, farm.trainers[0].worker_id]
    assert first_three(Order(MEMORY)) == largest
    assert first_three(Order(MEMORY, is_reversed=True)) == largest[::-1]
    assert first_three(Order(THREADS))[0] == farm.trainers[0].worker_id


def test_groups_are_sorted_by_their_totals() -> None:
    farm = Farm()

    def titles(order: Order) -> list[str]:
        return [group.title for group in farm.grouped(BY_CLASS, order)]

    assert titles(Order(MEMORY))[:2] == ["actor Trainer", "task load"]
    assert titles(Order(MEMORY, is_reversed=True))[:2] == ["task load", "actor Trainer"]
    assert titles(Order("name")) == sorted(titles(Order()))
    assert titles(Order("name", is_reversed=True)) == sorted(titles(Order()), reverse=True)


def test_a_group_has_totals_and_a_column_needs_a_known_figure() -> None:
    farm = Farm()
    groups = groups_of(farm.snapshot())
    (trainers,) = (group for group in groups.groups(BY_CLASS, Order()) if group.title == "actor Trainer")

    assert groups.totals((MEMORY, QUEUED), trainers.workers) == {
        MEMORY: Total(40, is_least=True),
        QUEUED: Total(0),
    }
    assert GPU_MEMORY not in groups.known_figures
    assert GPU not in groups.known_figures
    assert MEMORY in groups.known_figures


def test_numbers_in_titles_are_in_their_order() -> None:
    scene = Scene()
    for stage in (10, 9, 1):
        scene.actor("A").known = {"labels": {"n": str(stage)}}
    snapshot = scene.snapshot()
    found = groups_of(snapshot).groups(WorkerGrouping("label", "n"), Order())

    assert [group.title for group in found] == ["n=1", "n=9", "n=10"]


def check_invariants(snapshot: Snapshot) -> None:
    """Checks that each grouping has each worker once, in each order."""
    groups = groups_of(snapshot)
    for grouping in groups.groupings():
        columns: tuple[Column, ...] = ("activity", "name", *FIGURES)
        orders = [Order(column, is_reversed=is_reversed) for column in columns for is_reversed in (False, True)]
        for order in orders:
            found = groups.groups(grouping, order)
            if grouping != BY_NODE:
                assert sum(len(group.workers) for group in found) == len(snapshot.workers)
            for group in found:
                assert len(groups.workers(group.workers, order)) == len(group.workers)
                inside = sum(len(bundle.workers) for bundle in group.bundles)
                assert inside + len(group.outside_bundles) <= len(group.workers)


@given(related_snapshots())
def test_each_grouping_has_each_worker_once(snapshot: Snapshot) -> None:
    assume(snapshot.samples)
    check_invariants(snapshot)


@pytest.mark.parametrize("name", ALL)
def test_each_grouping_of_a_recorded_snapshot_has_each_worker_once(name: str) -> None:
    check_invariants(load(RECORDED_CLUSTERS / name))
