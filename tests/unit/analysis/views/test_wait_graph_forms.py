from __future__ import annotations

import io

import networkx as nx
import pytest
from hypothesis import given

import dstack
from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.views import wait_graph_forms as module
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.wait_graph_forms import WaitBoxes
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot
from tests.examples.recorded import NAMES, recorded
from tests.unit.scenes import Scene
from tests.unit.simulations.tasks import ClusterScene, SimulatedCluster, task_clusters


def boxes_of(snapshot: Snapshot) -> tuple[WaitBoxes, AnalysedSnapshot]:
    analysed = AnalysedSnapshot.of(snapshot)
    return WaitBoxes.of(analysed.merged_index, analysed.diagnosis), analysed


def described(snapshot: Snapshot) -> list[tuple[int, str, str]]:
    found, analysed = boxes_of(snapshot)
    labels = {key: describe(vertex) for key, vertex in analysed.diagnosis.vertices.items()}
    return [(len(box.vertices), labels[box.first], box.outcome) for box in found.boxes]


def two_actors() -> Snapshot:
    return load(recorded("two_actors"))


def test_a_child_process_for_which_nothing_waits_is_drawn_beside_the_other() -> None:
    found = described(load(recorded("hangs/lock_held_at_fork")))

    assert [outcome for _, label, outcome in found if label.startswith("child process")] == ["never", "never"]


def test_a_cycle_comes_first_and_in_its_order() -> None:
    found, _ = boxes_of(two_actors())

    assert described(two_actors()) == [
        (1, "Cashier.order", "deadlock"),
        (1, "Kitchen.cook", "deadlock"),
        (1, "Cashier.is_paid", "deadlock"),
        (1, "driver two_actors.py", "behind"),
    ]
    links = {(link.source, link.target): (link.is_deadlocked, link.is_in_cycle) for link in found.links}
    assert links == {(0, 1): (True, True), (1, 2): (True, True), (2, 0): (True, True), (3, 0): (False, False)}


def test_similar_waiters_are_one_box() -> None:
    scene = Scene()
    driver, store = scene.driver(), scene.actor("Store")
    load_call = scene.call(store, "load", by=driver)
    store.runs(load_call)
    tasks = []
    for _ in range(64):
        call, worker = scene.run("train", by=driver)
        worker.threads[0].line = 7
        worker.gets(load_call)
        tasks.append(call)
    driver.gets(*tasks)
    snapshot = scene.snapshot()
    found, _ = boxes_of(snapshot)

    assert described(snapshot) == [
        (1, "Store.load", "blocker"),
        (64, "train", "waits"),
        (1, "driver train.py", "waits"),
    ]
    assert [(link.source, link.target) for link in found.links] == [(1, 0), (2, 1)]


@given(task_clusters())
def test_every_waiter_is_in_one_box(cluster: SimulatedCluster) -> None:
    found, analysed = boxes_of(ClusterScene(cluster).scene.snapshot())
    vertices = analysed.diagnosis.vertices
    shown = [key for box in found.boxes for key in box.vertices]
    waiting = {key for key, vertex in vertices.items() if vertex.is_counted and any(targets_of(vertex))}

    assert len(shown) == len(set(shown))
    assert waiting <= set(shown)
    assert all(vertices[found.boxes[link.source].first].wait is not None for link in found.links)
    assert all(link.source != link.target for link in found.links)


def test_more_boxes_than_can_be_drawn_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = boxes_of(two_actors())
    monkeypatch.setattr(module, "MAX_BOXES", 3)
    found, _ = boxes_of(two_actors())

    assert found.boxes == whole.boxes[:3]
    assert found.left_out == 1
    assert len(found.links) == 3

    monkeypatch.setattr(module, "MAX_LINKS", 2)
    found, _ = boxes_of(two_actors())
    assert (len(found.links), found.left_out_links) == (2, 1)


def test_a_wait_for_some_of_several_says_so() -> None:
    found, analysed = boxes_of(load(recorded("hangs/two_of_three")))
    labels = {describe(analysed.diagnosis.vertices[box.first]): box.any_of for box in found.boxes}

    assert labels["Chair.decide"] == (1, 2)
    assert labels["Member.think"] is None


def test_the_beginning_of_a_long_chain_is_one_box() -> None:
    scene = Scene()
    driver = scene.driver()
    last, _ = scene.run("step", by=driver)
    for _ in range(50):
        call, before = scene.run("step", by=driver)
        before.threads[0].line = 7
        before.gets(last)
        last = call
    driver.gets(last)
    found, _ = boxes_of(scene.snapshot())

    sizes = sorted(len(box.vertices) for box in found.boxes)
    assert sizes[-1] > 30
    assert len(sizes) <= module.DEPTH + 3
    assert max(found.boxes, key=lambda box: len(box.vertices)).own == sizes[-1] - 1


def diagnosis_of(name: str) -> Diagnosis:
    return diagnose(dstack.load(recorded(name)))


def test_a_deadlock_of_two_actors_is_a_cycle_of_the_graph() -> None:
    diagnosis = diagnosis_of("two_actors")
    graph = dstack.to_networkx(diagnosis)

    (cycle,) = nx.simple_cycles(graph)

    (finding,) = diagnosis.findings
    assert set(cycle) == set(map(str, finding.cycle))
    assert {graph.nodes[key]["label"] for key in cycle} == {"Cashier.order", "Kitchen.cook", "Cashier.is_paid"}


def test_groups_say_how_many_of_their_targets_a_wait_needs() -> None:
    graph = dstack.to_networkx(diagnosis_of("look_alikes/first_of_two_awaited"))

    needed = {(key, data["group"], data["needs"]) for key, _, data in graph.edges(data=True)}

    assert any(sum(1 for _, _, edge in graph.out_edges(key, data=True)) > needs for key, _, needs in needed)


@pytest.mark.parametrize("name", NAMES[::10])
def test_each_dependency_is_an_edge_and_the_graph_can_be_exported(name: str) -> None:
    diagnosis = diagnosis_of(name)
    graph = dstack.to_networkx(diagnosis)

    waits = [vertex.wait for vertex in diagnosis.vertices.values() if vertex.wait]
    assert graph.number_of_edges() == sum(len(group.targets) for wait in waits for group in wait.groups)
    assert set(graph) == set(map(str, diagnosis.vertices))
    assert nx.read_graphml(graphml(graph), force_multigraph=True).nodes.keys() == graph.nodes.keys()


def graphml(graph: nx.MultiDiGraph[str]) -> io.BytesIO:
    file = io.BytesIO()
    nx.write_graphml_xml(graph, file)
    file.seek(0)
    return file
