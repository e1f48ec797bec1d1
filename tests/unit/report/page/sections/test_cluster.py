from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace

from benchmarks.bench_merging import snapshot_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.worker_figures import FIGURES
from dstack.model import Bundle, Snapshot
from dstack.report.page.report_data import ReportData
from dstack.report.page.sections import cluster as module
from dstack.report.page.sections.cluster import section
from dstack.snapshot_file import load
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.scenes import Scene
from tests.unit.support.html_elements import ATTACK, Element, elements_of
from tests.unit.support.random_snapshots import related_snapshots

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
    snapshot = snapshot_of(1_000)
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))
    assert found is not None
    assert len(found.body) < 700_000
    monkeypatch.setattr("dstack.report.page.rows.worker_rows.MAX_ROWS", 30)

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


def test_each_figure_has_a_title() -> None:
    assert set(module.HEADS) == set(FIGURES)
