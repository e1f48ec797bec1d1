"""None"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace

from benchmarks.made_up_snapshots import with_many_stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import ClusterInventory
from dstack.analysis.views.worker_state import MEMORY
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Bundle, Snapshot
from dstack.observed.node import Disk, Gpu, HostFigures
from dstack.report.page import cluster_section as module
from dstack.report.page.cluster_section import NodeTable, WorkerTable, node_table, section, worker_table
from dstack.report.page.section import ReportData
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.analysis.views.test_object_memory import full_store
from tests.unit.analysis.views.test_wait_tree import crowd
from tests.unit.scenes import TAKEN_AT, Scene
from tests.unit.scenes.ranks import training
from tests.unit.support.html_elements import ATTACK, Element, elements_of
from tests.unit.support.random_snapshots import related_snapshots

GIB = 2**30


def nodes_of(scene: Scene) -> NodeTable:
    analysed = AnalysedSnapshot.of(scene.snapshot())
    return node_table(ClusterInventory(analysed.merged_index, analysed.diagnosis))


def test_a_node_has_its_host_its_resources_and_its_workers() -> None:
    scene = Scene()
    node = scene.node(
        free={"CPU": 1.0, "object_store_memory": 1.0 * GIB}, CPU=4.0, object_store_memory=2.0 * GIB, tpu=1
    )
    scene.nodes[0] = replace(
        node,
        host=HostFigures(
            cpu_count=8,
            cpu_percent=25.0,
            load_1m=1.5,
            memory_total_bytes=16 * GIB,
            memory_available_bytes=4 * GIB,
            disks=(Disk(use="session", path="/tmp/ray", total_bytes=100 * GIB, free_bytes=30 * GIB),),
            gpus=(Gpu(index=0, name="A100", utilisation_percent=93.0),),
        ),
    )
    scene.driver(node).computes()
    scene.group("CREATED", Bundle(resources={"CPU": 1.0}, node_id=node.node_id), name="trainers")
    scene.group("REMOVED", Bundle(resources={"CPU": 1.0}, node_id=node.node_id), name="former")
    table = nodes_of(scene)

    (row,) = table.rows
    assert table.resources == ("CPU", "object store")
    assert (row.workers, row.counts) == (1, (("running", 1),))
    assert (row.busy.text, row.busy.value) == ("25 % of 8", 25.0)
    assert (row.load.text, row.memory.text) == ("1.5", "12.0 of 16.0 GiB")
    assert [(cell.text, cell.value) for cell in row.amounts] == [("3 of 4", 3.0), ("1.0 of 2.0 GiB", 1.0)]
    assert row.more[:3] == (
        "tpu 1 of 1 used, 0 free",
        "disk: session 30.0 of 100.0 GiB free",
        "GPU 0 A100: 93 % busy",
    )
    assert [text for text in row.more if "placement group" in text] == [row.more[3]]
    assert "trainers" in row.more[3]


def test_what_is_unknown_is_no_number() -> None:
    scene = Scene()
    scene.driver(scene.node(CPU=4.0))
    row = nodes_of(scene).rows[0]

    assert [(cell.text, cell.value) for cell in (row.busy, row.load, row.memory)] == [("-", None)] * 3
    assert row.more == ("host not read",)


def test_a_dead_node_has_its_cause_and_no_resources() -> None:
    scene = Scene()
    scene.driver(scene.node(CPU=4.0))
    scene.nodes.append(replace(scene.node(alive=False, CPU=2.0), death_cause="lost heartbeats"))
    del scene.nodes[1]
    dead = nodes_of(scene).rows[-1]

    assert not dead.node.alive
    assert dead.more == ("lost heartbeats",)
    assert [cell.text for cell in dead.amounts] == ["-"]


def test_of_very_many_nodes_those_with_unread_workers_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 2)
    scene = Scene()
    nodes = [scene.node(CPU=1.0) for _ in range(5)]
    scene.nodes[0] = replace(nodes[0], is_head=True)
    silent = scene.worker(nodes[4])
    silent.is_unreachable = silent.is_unreadable = True
    table = nodes_of(scene)

    assert [row.node.ip for row in table.rows] == [nodes[0].ip, nodes[4].ip]
    assert table.left_out == 3


def test_of_many_gpus_the_first_ones_are_listed() -> None:
    scene = Scene()
    node = scene.node(CPU=1.0)
    scene.nodes[0] = replace(node, host=HostFigures(cpu_count=1, gpus=tuple(Gpu(index=number) for number in range(12))))
    more = nodes_of(scene).rows[0].more

    assert more[-1] == "4 more GPUs"
    assert len(more) == 9


def workers_of(snapshot: Snapshot) -> WorkerTable:
    data = ReportData(AnalysedSnapshot.of(snapshot))
    inventory = ClusterInventory(data.analysed.merged_index, data.analysed.diagnosis)
    summaries = inventory.summaries(snapshot.workers)
    return worker_table(inventory, summaries, data.stack_ids, data.analysed.stacks.rank_sets)


@pytest.mark.parametrize("name", ALL)
def test_every_worker_of_a_recorded_cluster_has_a_row(name: str) -> None:
    snapshot = load(RECORDED_CLUSTERS / name)

    assert sorted(row.pid for row in workers_of(snapshot).rows) == sorted(worker.pid for worker in snapshot.workers)


def test_a_worker_has_its_activity_its_line_and_the_link_to_its_stack() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver, CPU=1.0)
    worker.held = {"CPU": 1.0}
    driver.gets(call)
    data = ReportData(AnalysedSnapshot.of(scene.snapshot()))
    row = next(row for row in workers_of(scene.snapshot()).rows if row.pid == driver.worker.pid)

    assert row.activity == "waiting"
    assert row.does == "waits in ray.get for work"
    assert row.place == "/srv/app/app.py:10"
    assert row.stack == data.stack_ids[driver.key]
    held = next(row for row in workers_of(scene.snapshot()).rows if row.pid == worker.worker.pid)
    assert held.notes == ("holds 1 CPU",)


def test_figures_have_numbers_to_sort_by_unless_they_are_unknown() -> None:
    scene = Scene()
    scene.driver().known = {"rss_bytes": 2**30, "num_threads": 3, "started_at": TAKEN_AT - 60.0}
    scene.worker().idles()
    table = workers_of(scene.snapshot())

    assert MEMORY in table.figures
    cells = [row.figures[table.figures.index(MEMORY)] for row in table.rows]
    assert [(cell.text, cell.value) for cell in cells] == [("1.0G", 2**30), ("-", None)]


def test_of_very_many_workers_similar_ones_share_a_row_and_the_last_rows_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    table = workers_of(crowd(30).snapshot())

    assert table.is_grouped
    assert len(table.rows) == 2
    assert sum(row.count for row in table.rows) + table.left_out == 32
    assert max(row.count for row in table.rows) == 30


def test_a_row_of_several_ranks_names_them_and_has_all_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 4)
    scene, _ = training()
    rows = [row for row in workers_of(scene.snapshot()).rows if row.count > 1]

    assert [row.ranks for row in rows] == ["ranks 0-2, 4-7"]
    assert {"rank:0", "rank:7"} <= set(rows[0].terms)


MESH = load(RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz")


def page_of(snapshot: Snapshot) -> Element:
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))
    assert found is not None
    return elements_of(found.body)


def rows(page: Element, table: str) -> list[list[str]]:
    (found,) = page.all("table", class_=table)
    return [[cell.text for cell in (*row.all("th"), *row.all("td"))] for row in found.all("tr")]


@pytest.mark.parametrize("name", ALL)
def test_all_rows_of_a_table_have_as_many_cells_as_its_head(name: str) -> None:
    page = page_of(load(RECORDED_CLUSTERS / name))

    for table in page.all("table"):
        assert len({sum(one.tag in ("td", "th") for one in row.all()) for row in table.all("tr")}) == 1


def test_workers_have_states_in_words_figures_and_links_to_their_stacks() -> None:
    page = page_of(MESH)
    head, driver, *_ = rows(page, "workers")

    assert page.text.startswith("5 workers and drivers on 1 node: … waits: 4 ▶ runs: 1")
    assert head == ["State", "Name", "Pid", "Node", "CPU %", "Memory", "Queued", "Age", "Threads", "Activity"]
    assert driver[:4] == ["… waits", "driver mesh.py", "10816", "192.0.2.2"]
    assert driver[-1].endswith("/srv/app/mesh.py:24")
    data = ReportData(AnalysedSnapshot.of(MESH))
    links = {one.attributes["href"].removeprefix("#") for one in page.all("a")}
    assert links == set(data.stack_ids.values())


def test_pending_work_says_what_it_lacks_and_placement_groups_and_dead_actors_are_listed() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=2.0))
    for _ in range(12):
        scene.task("huge", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 64.0})
    scene.group("PENDING", Bundle(resources={"CPU": 64.0}), name="wide", scheduling_state="INFEASIBLE")
    snapshot = scene.snapshot()
    actor = scene.actor("Clerk")
    dead = replace(scene.actors[-1], state="DEAD", death_cause="killed") if actor else None
    assert dead is not None
    page = page_of(replace(snapshot, actors=(dead,)))

    assert "12 huge" in page.text
    assert "1 placement group Name State Strategy Bundles Nodes Ray's reason" in page.text
    assert "PENDING PACK" in page.text
    assert "INFEASIBLE" in page.text
    assert "1 dead actor" in page.text
    assert "killed" in page.text


def test_a_cluster_that_deadlocked_shows_stuck_workers_first() -> None:
    states = [row[0] for row in rows(page_of(load(RECORDED / "two_actors.json.gz")), "workers")[1:]]

    assert states[0] == "✖ stuck"


def test_without_nodes_and_workers_there_is_no_section() -> None:
    empty = replace(Scene().snapshot(), nodes=(), workers=())

    assert section(ReportData(AnalysedSnapshot.of(empty))) is None


def test_names_are_text_and_nothing_else() -> None:
    nodes = tuple(replace(node, ip=ATTACK, hostname=ATTACK, resources={ATTACK: 1.0}) for node in MESH.nodes)
    actors = tuple(replace(actor, class_name=ATTACK, name=ATTACK) for actor in MESH.actors)
    page = page_of(replace(MESH, nodes=nodes, actors=actors))

    assert {one.tag for one in page.all()} == {one.tag for one in page_of(MESH).all()}
    assert not any(name.startswith("on") for one in page.all() for name in one.attributes)


def test_hostile_text_is_visible() -> None:
    page = page_of(hostile(MESH))

    texts = [page.text, *(value for one in page.all() for value in one.attributes.values())]
    assert not any("\x1b" in text or "\u202e" in text for text in texts)


def test_a_thousand_workers_are_a_bounded_table(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = with_many_stacks(1_000)
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))
    assert found is not None
    assert len(found.body) < 700_000
    monkeypatch.setattr("dstack.report.page.cluster_section.MAX_ROWS", 30)

    page = page_of(snapshot)
    assert len(rows(page, "workers")) == 31
    assert "Left out: " in page.text


def test_long_lists_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_PENDING", "MAX_GROUPS", "MAX_DEAD"):
        monkeypatch.setattr(module, name, 1)
    scene = Scene()
    driver = scene.driver(scene.node(CPU=2.0))
    for name in ("huge", "larger"):
        scene.task(name, by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 64.0})
    scene.group("REMOVED", Bundle(resources={"CPU": 1.0})), scene.group("REMOVED", Bundle(resources={"CPU": 1.0}))
    text = page_of(scene.snapshot()).text

    assert "Left out: 1 more kind of pending work." in text
    assert "Left out: 1 more." in text


@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(related_snapshots())
def test_random_snapshots_have_a_cluster_section(snapshot: Snapshot) -> None:
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))
    page = elements_of(found.body if found else "")

    for table in page.all("table"):
        assert len({sum(one.tag in ("td", "th") for one in row.all()) for row in table.all("tr")}) == 1


def test_the_object_store_has_who_made_and_who_keeps_its_values() -> None:
    found = section(ReportData(AnalysedSnapshot.of(full_store())))

    assert found is not None
    assert "<summary>Object store</summary>" in found.body
    assert "<div>load: 20 MiB in 2 objects</div>" in found.body
    assert "2 × actor Holder: 160 MiB in 2 objects" in found.body
